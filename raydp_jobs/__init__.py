"""Spark jobs over the history, through RayDP."""
