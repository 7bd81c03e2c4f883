"""Who a client is: passwords, and what keeps guessing them slow."""
