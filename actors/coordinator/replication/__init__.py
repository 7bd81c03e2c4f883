"""Copies of groups on other coordinators: shipped by the leader, taken by followers, counted in the in-sync set."""
