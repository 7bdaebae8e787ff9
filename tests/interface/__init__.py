"""The firmware interface: frozen byte vectors, and how each side treats untrusted input."""
