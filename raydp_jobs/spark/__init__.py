"""Spark in the cluster's Ray: started, watched, put away."""
