"""The coordination server: who leads which topic groups, and who is a member."""
