"""The main job on real data: `lexicast demo`."""
