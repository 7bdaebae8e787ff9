"""Injected faults: their registry, and their effects on requests."""
