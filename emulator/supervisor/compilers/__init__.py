"""Compiler workers and the assignment of jobs to them."""
