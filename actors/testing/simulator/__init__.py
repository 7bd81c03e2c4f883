"""Whole clusters in one thread and no time, from a seed: what goes wrong, and an auditor of what is promised."""
