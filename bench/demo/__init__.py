"""The demo, the main job on real data: `lexicast demo`."""
