"""Shared parts of commands: the console, failures, connections, private daemons, pages."""
