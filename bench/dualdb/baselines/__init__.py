"""The engines that DualDB is compared with: the paper's baselines, on the same engine where they are a matter of
design, and DualDB's lists on other key-value stores."""
