"""The firmware interface: frozen byte vectors, and how each side treats what it must not trust."""
