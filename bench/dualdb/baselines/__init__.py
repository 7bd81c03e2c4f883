"""What DualDB is compared with: the paper's baselines, on the same engine where they are a matter of design."""
