"""The clients: Python, awaited and blocking, over sockets or actor handles; and paho with dictionaries."""
