"""Who may log in, and who may do what: password files and rules, as Mosquitto's. Pure."""
