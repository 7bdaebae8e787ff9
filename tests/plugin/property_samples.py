"""Sample values for every writable property, different from the default, in the forms that users give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino.properties import CacheMode, WorkloadType
from openvino.properties.hint import ExecutionMode, PerformanceMode, Priority
from openvino.properties.intel_npu import CompilerType
from openvino.properties.log import Level

from softnpu.plugin.properties import PROPERTIES, Access
from softnpu.plugin.properties.kinds import Switch

_YES: list[tuple[Any, Any]] = [(True, True), ("YES", True), ("true", True), (np.bool_(True), True)]


def writable() -> list[str]:
    """Return the writable properties."""
    return [name for name, record in PROPERTIES.items() if record.access is Access.RW]


def _same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


def _number(value: int) -> list[tuple[Any, Any]]:
    return [(value, value), (str(value), value)]


def _member(enumeration: Any, name: str) -> list[tuple[Any, Any]]:
    value = getattr(enumeration, name)
    return [(value, value), (name, value)]


SAMPLES: dict[str, list[tuple[Any, Any]]] = {
    **{name: _YES for name in writable() if isinstance(PROPERTIES[name].kind, Switch)},
    "INFERENCE_PRECISION_HINT": [*_member(ov.Type, "bf16"), ("F16", ov.Type.f16)],
    "EXECUTION_MODE_HINT": _member(ExecutionMode, "PERFORMANCE"),
    "PERFORMANCE_HINT": [*_member(PerformanceMode, "THROUGHPUT"), ("UNDEFINED", PerformanceMode.LATENCY)],
    "INFERENCE_NUM_THREADS": [*_number(1), (np.int64(1), 1)],
    "NPU_PROFILING_CLOCK": _same("DEVICE", "HOST"),
    "PERF_COUNT": [*_YES, (ov.properties.enable_profiling(True)[1], True)],
    "NPU_PLATFORM": _same("4000", "NPU4000"),
    "NPU_TILES": _number(3),
    "NPU_MAX_TILES": _number(5),
    "NPU_DMA_ENGINES": _number(1),
    "NPU_STEPPING": _number(1),
    "NPU_COMPILATION_MODE_PARAMS": _same(
        "optimization-level=2",
        "optimization-level=0 performance-hint-override=latency",
        "compute-layers-with-higher-precision=Sqrt,RMS",
    ),
    "NPU_F16_OVERFLOW": _same("INFINITY"),
    "NPU_KERNELS_FOR": _same("Gelu=my.domain.Gelu", "Relu=a.B,Softmax=a-b.C"),
    "NPU_KERNEL_TIMEOUT_MS": _number(250),
    "NPU_COMPILATION_MODE": _same("DefaultHW"),
    "NPU_COMPILER_TYPE": _member(CompilerType, "PREFER_PLUGIN"),
    "NPU_BACKEND_COMPILATION_PARAMS": _same("enable-memory-side-cache=true"),
    "COMPILATION_NUM_THREADS": _number(7),
    "NPU_BATCH_MODE": _same("COMPILER", "PLUGIN"),
    "NPU_ENABLE_STRIDES_FOR": _same("image"),
    "NPU_BYPASS_UMD_CACHING": [*_YES, (ov.properties.intel_npu.bypass_umd_caching(True)[1], True)],
    "CACHE_DIR": [("some/where", "some/where"), (Path("some/where"), "some/where")],
    "CACHE_MODE": _member(CacheMode, "OPTIMIZE_SIZE"),
    "WEIGHTS_PATH": [("model.bin", "model.bin"), (Path("model.bin"), "model.bin")],
    "NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": _number(4096),
    "MODEL_PRIORITY": [
        *_member(Priority, "HIGH"),
        *_member(Priority, "LOW"),
        ("DEFAULT", Priority.MEDIUM),
        (ov.properties.hint.model_priority(Priority.HIGH)[1], Priority.HIGH),
    ],
    "WORKLOAD_TYPE": _member(WorkloadType, "EFFICIENT"),
    "PERFORMANCE_HINT_NUM_REQUESTS": _number(3),
    "LOG_LEVEL": [(Level.ERR, Level.ERR), ("LOG_WARNING", Level.WARNING), (Level.TRACE, Level.TRACE)],
    "DEVICE_ID": _same("0", "4000"),
    "CACHING_PROPERTIES": [],  # test_properties_errors covers what may be added
}
"""The given value and the stored one."""

REFUSED: dict[str, list[Any]] = {
    "INFERENCE_PRECISION_HINT": ["f12", 16, ov.Type.i8],
    "EXECUTION_MODE_HINT": ["FAST", 1, PerformanceMode.LATENCY],
    "PERFORMANCE_HINT": ["CUMULATIVE_THROUGHPUT", PerformanceMode.CUMULATIVE_THROUGHPUT, 1, True],
    "INFERENCE_NUM_THREADS": [-1, "many", 1.5, True, 2**31],
    "NPU_PROFILING_CLOCK": ["device clock", 1],
    "NPU_PLATFORM": [4000, None],
    "NPU_TILES": [-2, "all", 2.0, True],
    "NPU_MAX_TILES": [-2, "all"],
    "NPU_DMA_ENGINES": [3, "both"],
    "NPU_STEPPING": [-2, "A0"],
    "NPU_F16_OVERFLOW": ["INF", True],
    "NPU_COMPILATION_MODE_PARAMS": [
        "compute-layers-with-higher-precision=sqrt",
        "optimization-level=3",
        "optimization-level=",
        "optimization-level",
        "optimisation-level=1",
        "performance-hint-override=fast",
        "optimization-level=1 optimization-level=2",
        "optimization-level=1,performance-hint-override=latency",
        1,
    ],
    "NPU_KERNELS_FOR": ["Gelu", "Gelu=Gelu", "Gelu=a.B,Gelu=a.C", "Gelu=a.B,", 1],
    "NPU_KERNEL_TIMEOUT_MS": [-1, 2.5, "many", True, None],
    "NPU_COMPILATION_MODE": [1],
    "NPU_COMPILER_TYPE": [CompilerType.PLUGIN, "PLUGIN", "MLIR", 1],
    "NPU_BACKEND_COMPILATION_PARAMS": [1],
    "COMPILATION_NUM_THREADS": [0, -1, "all"],
    "NPU_BATCH_MODE": ["NONE", 1],
    "NPU_ENABLE_STRIDES_FOR": [1, ["image"]],
    "CACHE_DIR": [1, None, b"bytes", "nul\0"],
    "CACHE_MODE": ["SIZE", 0],
    "WEIGHTS_PATH": [1],
    "NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": [-1, "1k"],
    "MODEL_PRIORITY": ["URGENT", 2, "MED"],
    "WORKLOAD_TYPE": ["FAST", 1, Priority.LOW],
    "PERFORMANCE_HINT_NUM_REQUESTS": [-1, "some"],
    "LOG_LEVEL": ["VERBOSE", 3, "LOG_"],
    "DEVICE_ID": [0, None],
    "CACHING_PROPERTIES": [1, ["NPU_TURBO", 1]],
}
"""Invalid values; properties not listed here are YES or NO."""


def refused() -> list[tuple[str, Any]]:
    """Return every writable property with each value that it refuses."""
    switch = ["MAYBE", 1, 0, None, "", "on/off"]
    return [(name, value) for name in writable() for value in REFUSED.get(name, switch)]
