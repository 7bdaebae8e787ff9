"""The engine of one device: a process that executes command buffers from the clients' rings.

It may be killed at any moment, which is an engine reset of the device.
"""
