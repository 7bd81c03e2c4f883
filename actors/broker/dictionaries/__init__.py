"""Dictionaries at a broker: those it holds, which of them each link has, and blocks in the forms that links take."""
