"""Shared subscriptions at a coordinator: a cursor a share and group, dealt to the brokers whose members have room."""
