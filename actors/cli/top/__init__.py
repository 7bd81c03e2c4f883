"""`lexicast top`: the cluster's overview in a terminal, as it goes on."""
