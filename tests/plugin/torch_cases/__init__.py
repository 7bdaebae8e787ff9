"""Tests that need torch; `test_torch.py` runs each file in a process that has it."""
