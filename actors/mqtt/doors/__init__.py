"""The ports of one broker at which MQTT clients come: TCP and WebSocket, each without TLS and with it."""
