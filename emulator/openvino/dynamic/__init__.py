"""Inferences of dynamic shapes, and of states whose shape changes."""
