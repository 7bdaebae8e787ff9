"""Infer requests: their tensors, states and results, and the command lists that they record."""
