"""DualDB as a coordinator's index of its log."""
