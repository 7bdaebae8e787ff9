"""Requests of a session: checked, then executed."""
