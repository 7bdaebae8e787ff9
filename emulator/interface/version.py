"""The version of the firmware interface."""

INTERFACE_MAJOR = 1
INTERFACE_MINOR = 1
