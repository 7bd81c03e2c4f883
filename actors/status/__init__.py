"""What actors say about themselves, asked for, gathered and put into words."""
