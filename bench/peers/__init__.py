"""The brokers that are measured, and what loads them."""
