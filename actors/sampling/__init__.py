"""The sampling broker: learns dictionaries for topic families, and publishes them."""
