"""Shared test helpers: daemons, client processes, a hostile client, leak checks."""
