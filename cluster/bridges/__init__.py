"""Bridges to other brokers: what they are to do, and the decisions that they take. Pure."""
