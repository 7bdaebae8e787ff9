"""Exceptions of random types at random lines of a daemon, while clients use it."""
