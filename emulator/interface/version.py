"""The version of the firmware interface and the environment variables that both sides honour."""

INTERFACE_MAJOR = 1
INTERFACE_MINOR = 0

ENV_SOCKET = "SOFTNPU_SOCKET"
"""Path of the control socket: where a daemon listens and where a client looks for one."""
ENV_AUTOSTART = "SOFTNPU_AUTOSTART"
"""`0`: a client that finds no daemon fails; anything else: it starts a per-user one."""
ENV_SPIN_US = "SOFTNPU_SPIN_US"
"""Longest busy wait in microseconds before a client or an engine sleeps; `0` never spins."""
ENV_PLATFORM = "SOFTNPU_PLATFORM"
"""Devices of a daemon that a client starts: platform numbers, separated by commas."""
ENV_IDLE_S = "SOFTNPU_IDLE_S"
"""Seconds without a client after which such a daemon ends; `0`: it stays."""
ENV_PYTHON = "SOFTNPU_PYTHON"
"""The Python with which a program that is not Python starts a daemon."""
ENV_FAILPOINTS = "SOFTNPU_FAILPOINTS"
"""Fail-points of a process and its children, for tests: see `failpoints`."""
ENV_INJECT = "SOFTNPU_INJECT"
"""Faults that a daemon provokes from its start on: see `injections`."""
ENV_OUTSIDE = "SOFTNPU_OUTSIDE"
"""JSON: what variables were before `softnpu run` changed them; a daemon started inside gets them back."""
