"""What links carry: messages and requests, and the shapes they are held to."""
