"""The ports of one broker at which MQTT clients come: TCP and WebSocket, without TLS and with it; whose connections a
proxy passes on."""
