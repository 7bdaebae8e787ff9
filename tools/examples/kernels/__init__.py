"""Kernels to learn from: sources in C, and in `reference` the same with numpy (docs/kernels.md)."""
