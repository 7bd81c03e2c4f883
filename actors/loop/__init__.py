"""The event loop of an actor beside its work: background tasks, and turns that are short."""
