"""Traces: where one publication is, and how long each hop of a marked one takes; nothing of the others is looked at."""
