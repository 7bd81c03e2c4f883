"""Care for stores that are closed: check, repair, compact, back up."""
