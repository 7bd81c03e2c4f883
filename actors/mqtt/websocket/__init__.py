"""MQTT over WebSocket: the upgrade, whose pages may ask for it, frames, the line between a socket and a connection."""
