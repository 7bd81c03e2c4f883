"""What leaves the log: too old, too much, expired or superseded."""
