"""OpenVINO's CPU device in this process: its core, and the properties and types that it is given."""

from __future__ import annotations

import contextlib
import os
import threading

import openvino as ov

from softnpu.emulator.arithmetic import settings as arithmetic
from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.openvino import lean_openvino
from softnpu.emulator.openvino.defects import remedies

_PRECISION = "INFERENCE_PRECISION_HINT"
_PROPERTIES = (
    _PRECISION,
    "EXECUTION_MODE_HINT",
    "INFERENCE_NUM_THREADS",
    "PERF_COUNT",
)
_MAX_STREAMS = 4
_CORES = len(os.sched_getaffinity(0))  # not later: OpenVINO pins threads that infer
_core: ov.Core | None = None
_core_lock = threading.Lock()


def core() -> ov.Core:
    """Return the OpenVINO core of this process."""
    global _core
    with _core_lock:
        if _core is None:
            _core = ov.Core()
    return _core


def load_device() -> None:
    """Load OpenVINO's CPU device ahead of the first image."""
    with contextlib.suppress(RuntimeError):  # the first image reports it
        core().get_property("CPU", "FULL_DEVICE_NAME")


def warm_up() -> None:
    """Have OpenVINO do what the first image would wait for."""
    from softnpu.emulator.openvino import first_model  # late: not every engine has the time

    with contextlib.suppress(RuntimeError, MemoryError):  # the first image reports it
        lean_openvino.load_reader(core())
        first_model.run(core())


def properties_of(meta: GraphMeta) -> dict[str, str]:
    """Return the properties with which OpenVINO's CPU device compiles an image."""
    chosen = {name: meta.config[name] for name in _PROPERTIES if name in meta.config}
    if meta.precision == arithmetic.PRECISION:
        chosen[_PRECISION] = "f32"  # rounded only where the device rounds
    if chosen.get("INFERENCE_NUM_THREADS") == "0":
        del chosen["INFERENCE_NUM_THREADS"]  # 0 means all, which is OpenVINO's default
    # each stream has its share of the threads, even while the others are idle
    count = most_streams(meta) if meta.config.get("PERFORMANCE_HINT") == "THROUGHPUT" else 1
    if meta.dynamic_states:
        # 8 bits with EXECUTION_MODE_HINT=PERFORMANCE, and a state that is copied out and in would change
        chosen["KV_CACHE_PRECISION"] = chosen[_PRECISION]
    return chosen | remedies.properties() | {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": str(count)}


def most_streams(meta: GraphMeta) -> int:
    """Return the number of streams of an image compiled for throughput."""
    return min(_MAX_STREAMS, int(meta.config.get("INFERENCE_NUM_THREADS", 0)) or _CORES)


def type_of(argument: ArgumentMeta) -> ov.Type:
    """Return the element type of an argument."""
    element_type: ov.Type = getattr(ov.Type, argument.element_type)
    return element_type
