"""Ray actors and asyncio shells around the cores; the MQTT listener, the Python client, the command line."""
