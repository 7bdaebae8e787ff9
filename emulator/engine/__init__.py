"""The engine of one device: a process that executes command buffers from clients' rings.

It may be killed at any moment; for the device that is an engine reset.
"""
