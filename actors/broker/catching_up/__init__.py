"""Bringing subscribers that lag up: pages of the past, read once for all who stand there."""
