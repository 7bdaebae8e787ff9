"""Observability: activity, traces, sysfs-like files."""
