"""The objects of sessions, and their memory."""
