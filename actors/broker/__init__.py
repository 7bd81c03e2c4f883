"""The broker: takes publications from clients, passes them on, and delivers blocks to subscribers."""
