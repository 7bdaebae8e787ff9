"""A compiled model: its container, and where the constants that it refers to lie."""
