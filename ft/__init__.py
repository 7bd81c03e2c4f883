"""Brokers that stand in for each other (REAPS): who backs up whom, what a backup subscribes to and is sent. Pure."""
