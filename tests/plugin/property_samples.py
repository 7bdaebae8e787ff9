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

_YES = [(True, True), ("YES", True), ("true", True), (np.bool_(True), True)]

SAMPLES: dict[str, list[tuple[Any, Any]]] = {
    "INFERENCE_PRECISION_HINT": [(ov.Type.bf16, ov.Type.bf16), ("bf16", ov.Type.bf16), ("F16", ov.Type.f16)],
    "EXECUTION_MODE_HINT": [
        (ExecutionMode.PERFORMANCE, ExecutionMode.PERFORMANCE),
        ("PERFORMANCE", ExecutionMode.PERFORMANCE),
    ],
    "PERFORMANCE_HINT": [
        (PerformanceMode.THROUGHPUT, PerformanceMode.THROUGHPUT),
        ("THROUGHPUT", PerformanceMode.THROUGHPUT),
        ("UNDEFINED", PerformanceMode.LATENCY),
    ],
    "INFERENCE_NUM_THREADS": [(1, 1), ("1", 1), (np.int64(1), 1)],
    "NPU_PROFILING_CLOCK": [("DEVICE", "DEVICE"), ("HOST", "HOST")],
    "PERF_COUNT": [*_YES, (ov.properties.enable_profiling(True)[1], True)],
    "NPU_PLATFORM": [("4000", "4000"), ("NPU4000", "NPU4000")],
    "NPU_TILES": [(3, 3), ("3", 3)],
    "NPU_MAX_TILES": [(5, 5), ("5", 5)],
    "NPU_DMA_ENGINES": [(1, 1), ("1", 1)],
    "NPU_STEPPING": [(1, 1), ("1", 1)],
    "NPU_COMPILATION_MODE_PARAMS": [
        ("optimization-level=2", "optimization-level=2"),
        (
            "optimization-level=0 performance-hint-override=latency",
            "optimization-level=0 performance-hint-override=latency",
        ),
        ("compute-layers-with-higher-precision=Sqrt,RMS",) * 2,
    ],
    "NPU_F16_OVERFLOW": [("INFINITY", "INFINITY")],
    "NPU_COMPILATION_MODE": [("DefaultHW", "DefaultHW")],
    "NPU_COMPILER_TYPE": [
        (CompilerType.PREFER_PLUGIN, CompilerType.PREFER_PLUGIN),
        ("PREFER_PLUGIN", CompilerType.PREFER_PLUGIN),
    ],
    "NPU_BACKEND_COMPILATION_PARAMS": [("enable-memory-side-cache=true", "enable-memory-side-cache=true")],
    "NPU_COMPILER_DYNAMIC_QUANTIZATION": _YES,
    "NPU_QDQ_OPTIMIZATION": _YES,
    "NPU_QDQ_OPTIMIZATION_AGGRESSIVE": _YES,
    "COMPILATION_NUM_THREADS": [(7, 7), ("7", 7)],
    "NPU_BATCH_MODE": [("COMPILER", "COMPILER"), ("PLUGIN", "PLUGIN")],
    "NPU_DYNAMIC_SHAPE_TO_STATIC": _YES,
    "NPU_STRICT": _YES,
    "NPU_ENABLE_STRIDES_FOR": [("image", "image")],
    "NPU_BYPASS_UMD_CACHING": [*_YES, (ov.properties.intel_npu.bypass_umd_caching(True)[1], True)],
    "CACHE_DIR": [("some/where", "some/where"), (Path("some/where"), "some/where")],
    "CACHE_MODE": [
        (CacheMode.OPTIMIZE_SIZE, CacheMode.OPTIMIZE_SIZE),
        ("OPTIMIZE_SIZE", CacheMode.OPTIMIZE_SIZE),
    ],
    "ENABLE_WEIGHTLESS": _YES,
    "NPU_EXPORT_RAW_BLOB": _YES,
    "NPU_IMPORT_RAW_BLOB": _YES,
    "WEIGHTS_PATH": [("model.bin", "model.bin"), (Path("model.bin"), "model.bin")],
    "NPU_USE_BASE_MODEL_SERIALIZER": _YES,
    "NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": [(4096, 4096), ("4096", 4096)],
    "MODEL_PRIORITY": [
        (Priority.HIGH, Priority.HIGH),
        ("LOW", Priority.LOW),
        ("DEFAULT", Priority.MEDIUM),
        (ov.properties.hint.model_priority(Priority.HIGH)[1], Priority.HIGH),
    ],
    "WORKLOAD_TYPE": [
        (WorkloadType.EFFICIENT, WorkloadType.EFFICIENT),
        ("EFFICIENT", WorkloadType.EFFICIENT),
    ],
    "NPU_TURBO": _YES,
    "PERFORMANCE_HINT_NUM_REQUESTS": [(3, 3), ("3", 3)],
    "NPU_MEASURE_OPTIMAL_REQUESTS": _YES,
    "NPU_RUN_INFERENCES_SEQUENTIALLY": _YES,
    "EXCLUSIVE_ASYNC_REQUESTS": _YES,
    "NPU_DEFER_WEIGHTS_LOAD": _YES,
    "NPU_DISABLE_IDLE_MEMORY_PRUNING": _YES,
    "ENABLE_CPU_PINNING": _YES,
    "LOG_LEVEL": [(Level.ERR, Level.ERR), ("LOG_WARNING", Level.WARNING), (Level.TRACE, Level.TRACE)],
    "DEVICE_ID": [("0", "0"), ("4000", "4000")],
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


def writable() -> list[str]:
    """Return the writable properties."""
    return [name for name, record in PROPERTIES.items() if record.access is Access.RW]


def refused() -> list[tuple[str, Any]]:
    """Return every writable property with each value that it refuses."""
    switch = ["MAYBE", 1, 0, None, "", "on/off"]
    return [(name, value) for name in writable() for value in REFUSED.get(name, switch)]
