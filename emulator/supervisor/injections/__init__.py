"""Injected faults: which there are, and what they do to requests."""
