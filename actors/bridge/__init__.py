"""Bridges to other brokers: a Python client of this cluster, and an MQTT client of the other broker."""
