"""Dictionaries and the regression trained from the history."""
