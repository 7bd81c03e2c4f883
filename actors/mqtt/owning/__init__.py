"""The sessions that a broker has of their homes: opened, saved, handed over, given back."""
