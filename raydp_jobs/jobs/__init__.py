"""The jobs over the history, one module a command: what it reads, decides, shows and publishes."""
