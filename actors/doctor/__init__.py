"""`lexicast doctor`: what is wrong with a machine or the cluster on it, and what to do about it."""
