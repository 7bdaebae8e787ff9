"""All properties by name. `effects` says what they do."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import openvino as ov
from openvino._pyopenvino.properties.device import PCIInfo
from openvino.properties import CacheMode, CompatibilityCheck, WorkloadType
from openvino.properties.device import Type as DeviceType
from openvino.properties.hint import ExecutionMode, PerformanceMode, Priority
from openvino.properties.intel_npu import CompilerType
from openvino.properties.log import Level as LogLevel

from softnpu.emulator.arithmetic.settings import INFINITY, OVERFLOW, SATURATE
from softnpu.emulator.blob.kernel_plan import TIMEOUT
from softnpu.emulator.kernels import replacements
from softnpu.plugin.errors import PropertyError
from softnpu.plugin.properties import mode_params
from softnpu.plugin.properties.hints import DMA_ENGINES
from softnpu.plugin.properties.kinds import (
    Callbacks,
    Choice,
    Kind,
    Names,
    NotAllowed,
    PathKind,
    ReadOnly,
    Switch,
    Text,
    Whole,
    plain,
    words,
)

PropertyPairs = Mapping[Any, Any] | tuple[Any, Any]
"""Values by property name, or one pair, as `ov.properties.enable_profiling(True)` makes it."""


class Access(enum.Enum):
    """Whether a property can be set."""

    RO = "RO"
    RW = "RW"
    WO = "WO"


class Level(enum.Flag):
    """Where a property can be read. Every RW property can be passed to `compile_model`."""

    CORE = 1
    MODEL = 2
    BOTH = 3


class Use(enum.Enum):
    """The component that a property acts on."""

    REPORTED = "reported"
    COMPILER = "compiler"
    QUEUE = "queue"
    PLUGIN = "plugin"
    RECORDED = "recorded only"


class Property(msgspec.Struct, frozen=True, kw_only=True):
    """One property.

    `default` is None where it depends on the device or the table. `live`: settable on a compiled model.
    `cached`: it changes the compiled model, so it is part of the key of OpenVINO's cache.
    """

    name: str
    use: Use
    kind: Kind
    default: Any = None
    access: Access = Access.RW
    level: Level = Level.BOTH
    live: bool = False
    cached: bool = False
    aliases: tuple[str, ...] = ()

    def access_at(self, level: Level) -> Access:
        """Return the access at `level`: on a compiled model only live properties can be set."""
        return self.access if level is Level.CORE or self.live else Access.RO

    def text(self, value: Any) -> str:
        """Return a value of this property as OpenVINO writes it."""
        return self.kind.text(value)


def _reported(name: str, type: Any, level: Level = Level.CORE, cached: bool = False) -> Property:
    kind = ReadOnly(type)
    return Property(name=name, use=Use.REPORTED, kind=kind, access=Access.RO, level=level, cached=cached)


def _set(name: str, use: Use, kind: Kind, default: Any, **others: Any) -> Property:
    return Property(name=name, use=use, kind=kind, default=default, **others)


def _compiled(name: str, use: Use, kind: Kind, default: Any, **others: Any) -> Property:
    """Return a property that changes a compiled model."""
    return Property(name=name, use=use, kind=kind, default=default, cached=True, **others)


def _switch(name: str, use: Use, cached: bool = False) -> Property:
    """Return a property that is NO by default."""
    return Property(name=name, use=use, kind=Switch(), default=False, cached=cached)


def _members(enumeration: Any, *names: str, also: Mapping[str, Any] | None = None) -> Choice:
    """Return a choice of members of an enumeration of OpenVINO, by their names."""
    return Choice({name: getattr(enumeration, name) for name in names}, also)


def _check_caching(names: Sequence[str]) -> None:
    missing = sorted(set(cached_names()) - set(names))
    unknown = [name for name in names if name not in PROPERTIES]
    if unknown:
        raise NotAllowed(f"names of properties, which {', '.join(unknown)} is not")
    if missing:
        raise NotAllowed(f"all that change a compiled model, also {', '.join(missing)}")


def _check_kernels(text: str) -> None:
    if replacements.parse(text) is None:
        raise NotAllowed


_LOG_LEVELS = {
    "LOG_NONE": LogLevel.NO,
    "LOG_ERROR": LogLevel.ERR,
    "LOG_WARNING": LogLevel.WARNING,
    "LOG_INFO": LogLevel.INFO,
    "LOG_DEBUG": LogLevel.DEBUG,
    "LOG_TRACE": LogLevel.TRACE,
}

_ALL = (
    # of the device and the plugin: `readers` has their values
    _reported("SUPPORTED_PROPERTIES", dict, Level.BOTH),
    _reported("SUPPORTED_METRICS", list),
    _reported("SUPPORTED_CONFIG_KEYS", list),
    _reported("NUM_STREAMS", int, Level.BOTH),
    _reported("OPTIMAL_NUMBER_OF_INFER_REQUESTS", int, Level.BOTH),
    _reported("RANGE_FOR_ASYNC_INFER_REQUESTS", tuple),
    _reported("RANGE_FOR_STREAMS", tuple),
    _reported("AVAILABLE_DEVICES", list),
    _reported("DEVICE_UUID", str),
    _reported("DEVICE_ARCHITECTURE", str, cached=True),
    _reported("FULL_DEVICE_NAME", str),
    _reported("DEVICE_TYPE", DeviceType),
    _reported("DEVICE_GOPS", dict),
    _reported("DEVICE_PCI_INFO", PCIInfo),
    _reported("NPU_DEVICE_ALLOC_MEM_SIZE", int),
    _reported("NPU_DEVICE_TOTAL_MEM_SIZE", int),
    _reported("NPU_DRIVER_VERSION", int, cached=True),
    _reported("NPU_COMPILER_VERSION", int, cached=True),
    _reported("OPTIMIZATION_CAPABILITIES", list),
    _reported("EXECUTION_DEVICES", str, Level.BOTH),
    _reported("LOADED_FROM_CACHE", bool, Level.MODEL),
    _reported("RUNTIME_REQUIREMENTS", str, Level.MODEL),
    _reported("COMPATIBILITY_CHECK", CompatibilityCheck),
    _reported("NETWORK_NAME", str, Level.MODEL),
    _reported("NPU_MEASURED_THROUGHPUT", dict, Level.MODEL),
    # of compilation, caching, export and import
    _compiled("INFERENCE_PRECISION_HINT", Use.COMPILER, _members(ov.Type, "f32", "bf16", "f16"), ov.Type.f32),
    _compiled(OVERFLOW, Use.COMPILER, words(SATURATE, INFINITY), SATURATE),
    _compiled(
        "EXECUTION_MODE_HINT",
        Use.COMPILER,
        _members(ExecutionMode, "ACCURACY", "PERFORMANCE"),
        ExecutionMode.ACCURACY,
    ),
    _compiled(
        "PERFORMANCE_HINT",
        Use.COMPILER,
        _members(PerformanceMode, "LATENCY", "THROUGHPUT", also={"UNDEFINED": PerformanceMode.LATENCY}),
        PerformanceMode.LATENCY,
    ),
    _compiled("INFERENCE_NUM_THREADS", Use.COMPILER, Whole(0), 0),
    _switch("PERF_COUNT", Use.COMPILER, cached=True),
    _compiled("NPU_PROFILING_CLOCK", Use.COMPILER, words("HOST", "DEVICE"), "HOST"),
    _compiled("NPU_PLATFORM", Use.COMPILER, Text("a platform such as 4000, or AUTO_DETECT"), "AUTO_DETECT"),
    _compiled("NPU_TILES", Use.COMPILER, Whole(-1), -1),
    _compiled("NPU_MAX_TILES", Use.PLUGIN, Whole(-1), None),
    _compiled("NPU_DMA_ENGINES", Use.RECORDED, Whole(-1, DMA_ENGINES), -1),
    _compiled("NPU_STEPPING", Use.RECORDED, Whole(-1), None),
    _compiled(
        "NPU_COMPILATION_MODE_PARAMS",
        Use.COMPILER,
        Text("text of NAME=VALUE parameters", mode_params.parse),
        "",
    ),
    _compiled(
        "NPU_COMPILER_TYPE",
        Use.PLUGIN,
        _members(CompilerType, "DRIVER", "PREFER_PLUGIN"),
        CompilerType.DRIVER,
    ),
    _compiled("NPU_BACKEND_COMPILATION_PARAMS", Use.RECORDED, Text(), ""),
    _switch("NPU_COMPILER_DYNAMIC_QUANTIZATION", Use.RECORDED, cached=True),
    _switch("NPU_QDQ_OPTIMIZATION", Use.RECORDED, cached=True),
    _switch("NPU_QDQ_OPTIMIZATION_AGGRESSIVE", Use.RECORDED, cached=True),
    _set("COMPILATION_NUM_THREADS", Use.RECORDED, Whole(1), os.cpu_count() or 1),
    _compiled(
        "NPU_BATCH_MODE", Use.PLUGIN, words("AUTO", "COMPILER", "PLUGIN"), "AUTO", aliases=("BATCH_MODE",)
    ),
    _switch("NPU_DYNAMIC_SHAPE_TO_STATIC", Use.COMPILER, cached=True),
    _switch("NPU_STRICT", Use.COMPILER, cached=True),
    _compiled(
        "NPU_ENABLE_STRIDES_FOR",
        Use.COMPILER,
        Text("names of inputs and outputs, separated by commas"),
        "",
    ),
    _compiled(replacements.PROPERTY, Use.COMPILER, Text(replacements.ALLOWED, _check_kernels), ""),
    _compiled(TIMEOUT, Use.COMPILER, Whole(0), 0),
    _compiled("NPU_COMPILATION_MODE", Use.RECORDED, Text(), ""),
    _switch("NPU_BYPASS_UMD_CACHING", Use.PLUGIN),
    _set("CACHE_DIR", Use.PLUGIN, PathKind(), ""),
    _set(
        "CACHE_MODE",
        Use.PLUGIN,
        _members(CacheMode, "OPTIMIZE_SPEED", "OPTIMIZE_SIZE"),
        CacheMode.OPTIMIZE_SPEED,
    ),
    _set("CACHE_ENCRYPTION_CALLBACKS", Use.PLUGIN, Callbacks(), None, level=Level.CORE, access=Access.WO),
    _switch("ENABLE_WEIGHTLESS", Use.PLUGIN),
    _switch("NPU_EXPORT_RAW_BLOB", Use.PLUGIN),
    _switch("NPU_IMPORT_RAW_BLOB", Use.PLUGIN),
    _set("WEIGHTS_PATH", Use.PLUGIN, PathKind(), ""),
    _switch("NPU_USE_BASE_MODEL_SERIALIZER", Use.PLUGIN),
    _set("NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD", Use.PLUGIN, Whole(0), 0),
    # of queue, requests, log, choice of the device
    _set(
        "MODEL_PRIORITY",
        Use.QUEUE,
        _members(Priority, "LOW", "MEDIUM", "HIGH", also={"DEFAULT": Priority.MEDIUM}),
        Priority.MEDIUM,
    ),
    _set(
        "WORKLOAD_TYPE",
        Use.QUEUE,
        _members(WorkloadType, "DEFAULT", "EFFICIENT"),
        WorkloadType.DEFAULT,
        live=True,
    ),
    _switch("NPU_TURBO", Use.QUEUE),
    _set("PERFORMANCE_HINT_NUM_REQUESTS", Use.PLUGIN, Whole(0), 1),
    _switch("NPU_MEASURE_OPTIMAL_REQUESTS", Use.PLUGIN),
    _switch("NPU_RUN_INFERENCES_SEQUENTIALLY", Use.RECORDED),
    _switch("EXCLUSIVE_ASYNC_REQUESTS", Use.RECORDED),
    _switch("NPU_DEFER_WEIGHTS_LOAD", Use.PLUGIN),
    _switch("NPU_DISABLE_IDLE_MEMORY_PRUNING", Use.QUEUE),
    _switch("ENABLE_CPU_PINNING", Use.RECORDED),
    _set("LOG_LEVEL", Use.COMPILER, Choice(_LOG_LEVELS), LogLevel.NO),
    _set(
        "DEVICE_ID",
        Use.PLUGIN,
        Text("empty, the number of a device, or its platform"),
        "",
        level=Level.CORE,
    ),
    _set(
        "CACHING_PROPERTIES",
        Use.PLUGIN,
        Names("names of properties", _check_caching),
        None,
        level=Level.CORE,
    ),
)

PROPERTIES: dict[str, Property] = {record.name: record for record in _ALL}
"""Every property by name."""

_BY_ANY_NAME = PROPERTIES | {alias: record for record in PROPERTIES.values() for alias in record.aliases}


def at(level: Level) -> list[Property]:
    """Return the properties of `level`."""
    return [record for record in PROPERTIES.values() if level in record.level]


def cached_names() -> list[str]:
    """Return the properties that change a compiled model."""
    return sorted(record.name for record in PROPERTIES.values() if record.cached)


def find(name: Any) -> Property:
    """Return the property with this name. Raises `PropertyError` with similar names for an unknown one."""
    if not isinstance(name, str):
        raise PropertyError(f"property {name!r}: {type(name).__name__} given; expected its name as text")
    record = _BY_ANY_NAME.get(str(name))
    if record is None:
        import difflib  # late: for errors only

        near = difflib.get_close_matches(name[:100].upper(), _BY_ANY_NAME, n=3)
        raise PropertyError(
            f"property {name}: unknown; expected one of SUPPORTED_PROPERTIES"
            + (f". Did you mean {' or '.join(near)}?" if near else "")
        )
    return record


def find_at(level: Level, name: Any) -> Property:
    """Return the property with this name at `level`. Raises `PropertyError`, which names the other level."""
    record = find(name)
    if level not in record.level:
        here, there = ("the core", "CompiledModel.get_property(name)")
        if level is Level.MODEL:
            here, there = ("a compiled model", "Core.get_property(device, name)")
        raise PropertyError(
            f"property {record.name}: asked of {here}, which does not have it; expected {there}"
        )
    return record


def accept(record: Property, value: Any) -> Any:
    """Convert `value` to the stored type.

    Raises `PropertyError` for a read-only property or an invalid value.
    """
    if record.access is Access.RO:
        raise PropertyError(f"property {record.name}: set to {value!r}; expected no value, it is read-only")
    unwrapped = plain(value)
    try:
        return record.kind.accept(unwrapped)
    except NotAllowed as reason:
        raise PropertyError(
            f"property {record.name}: value {unwrapped!r}; expected {str(reason) or record.kind.allowed}"
        ) from None


def parse(pairs: PropertyPairs) -> dict[str, Any]:
    """Return checked values by property name. Raises `PropertyError`, also for two values of one property."""
    values: dict[str, Any] = {}
    for name, value in property_pairs(pairs):
        record = find(name)
        accepted = accept(record, value)
        if record.name in values and values[record.name] != accepted:
            raise PropertyError(f"property {record.name}: given twice, also as {name}; expected one value")
        values[record.name] = accepted
    return values


def property_pairs(pairs: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (name, value) pairs of `pairs`. Raises `PropertyError` for another type."""
    if isinstance(pairs, Mapping):
        return pairs.items()
    if isinstance(pairs, tuple) and len(pairs) == 2:
        return [pairs]
    raise PropertyError(
        f"properties: {type(pairs).__name__}; expected a mapping of names to values, or one pair"
    )


def static_defaults() -> dict[str, Any]:
    """Return the defaults that do not depend on a device."""
    values: dict[str, Any] = {
        record.name: record.default for record in PROPERTIES.values() if record.access is not Access.RO
    }
    values["CACHING_PROPERTIES"] = cached_names()
    level = log_level_of_environment()
    return values if level is None else values | {"LOG_LEVEL": level}


def log_level_of_environment() -> Any:
    """Return the level in OV_NPU_LOG_LEVEL; None if unset or invalid, as in the real plugin."""
    try:
        return accept(PROPERTIES["LOG_LEVEL"], os.environ["OV_NPU_LOG_LEVEL"])
    except (KeyError, PropertyError):
        return None
