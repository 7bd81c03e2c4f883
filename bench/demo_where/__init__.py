"""The demo of content subscriptions, a condition at the broker beside a filter in clients: `lexicast demo --where`."""
