"""Inferences with dynamic shapes, and with states whose shape changes."""
