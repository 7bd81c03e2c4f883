"""Matchers as a coordinator sees them: asked about blocks, whose records wait for the answer or not (SREM, B)."""
