"""Conditions on the content of publications: syntax, meaning, fields of payloads, boxes for the index."""
