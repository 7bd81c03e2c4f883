"""Channels: questions answered every period."""
