"""MQTT packets to bytes and back."""
