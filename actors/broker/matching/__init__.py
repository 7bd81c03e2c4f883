"""Matchers as a broker sees them: what they are told of its subscribers' conditions and of publications (SREM)."""
