"""Everything that touches Ray's API: handles, errors, tokens, the life of an actor."""
