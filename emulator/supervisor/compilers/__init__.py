"""Compiler workers: which one compiles which model."""
