"""A broker's Python clients: their links, subscriptions, samples and questions."""
