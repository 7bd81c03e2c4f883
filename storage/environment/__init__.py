"""A coordinator's LMDB environment: opened, identified, guarded, and the room that is left in it."""
