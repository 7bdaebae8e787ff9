"""Shared parts of daemon monitors: samples, rates between two samples, program names."""
