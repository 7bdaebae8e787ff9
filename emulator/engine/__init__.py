"""The compute core of one device: a process that executes command buffers out of the clients' rings.

It may be killed at any moment; that is the device's engine reset.
"""
