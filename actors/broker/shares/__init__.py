"""Shared subscriptions at a broker: its members, what they are dealt, what they have done with."""
