"""Requests of a session: checked, then done."""
