"""The maintenance of stores that nobody serves: check, repair, compact, back up."""
