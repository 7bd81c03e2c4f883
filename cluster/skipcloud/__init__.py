"""SkipCloud, the overlay of SREM's members: clusters by prefix, Cyclon views of each level, prefix routing. Pure."""
