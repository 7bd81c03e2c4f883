"""The console of a node: metrics, health, an API and a page, served beside its brokers to whoever operates them."""
