"""The MQTT bridge: connections, sessions and their packets, versions 3.1.1 and 5."""
