"""The memory of weights that an image uses in place."""
