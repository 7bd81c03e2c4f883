"""The history as a DataFrame."""
