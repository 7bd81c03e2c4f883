"""The index of content subscriptions: which boxes a batch of points lies in."""
