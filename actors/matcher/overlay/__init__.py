"""Matchers' overlay (SkipCloud): neighbours, what is routed to and from other matchers, what is spread over all."""
