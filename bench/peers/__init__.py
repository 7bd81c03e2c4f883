"""The brokers that are measured, and the load generator."""
