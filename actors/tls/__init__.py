"""TLS: certificates looked at and taken anew, handshakes in a bounded line, who a client is by its certificate."""
