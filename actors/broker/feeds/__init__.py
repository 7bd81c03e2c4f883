"""Answers in pages, on their way from the coordinators: what is retained, the last of each topic."""
