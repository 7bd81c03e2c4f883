"""The status of actors: what they say about themselves, asked for, gathered and put into words."""
