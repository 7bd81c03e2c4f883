"""The blocking client: the awaited one in an event loop of its own thread."""
