"""Submissions that C++ repeats: those that Python has seen run twice."""
