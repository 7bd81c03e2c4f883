"""What every actor's event loop runs beside its work: background tasks, and turns that are short."""
