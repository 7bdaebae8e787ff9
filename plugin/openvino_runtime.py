"""OpenVINO's own runtime in this process: it reads models and knows the host's processor."""

from __future__ import annotations

import functools
from typing import Any

import openvino as ov


@functools.cache
def runtime() -> Any:
    """One `openvino.Core` for the process; it is made at first use."""
    return ov.Core()


@functools.cache
def cpu_capabilities() -> tuple[str, ...]:
    """OPTIMIZATION_CAPABILITIES of the CPU device: the engine computes with it, on the same machine."""
    return tuple(runtime().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
