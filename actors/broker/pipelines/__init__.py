"""Publications on their way from a broker to the coordinators."""
