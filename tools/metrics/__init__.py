"""Metrics of a daemon for Prometheus: `softnpu metrics`."""
