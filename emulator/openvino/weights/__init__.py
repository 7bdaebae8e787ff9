"""Memory of weights while an image uses it in place."""
