"""Who a client is: passwords, tokens, and what keeps guessing them slow."""
