"""Topic names and filters."""
