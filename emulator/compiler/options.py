"""The properties that the compiler understands: values, defaults, and those passed to the engine.

Names and values are OpenVINO's own (`ov::hint`, `ov::intel_npu`), as text. An explicit choice is honoured or
refused, never replaced by something near it. One exception: in build flags, as for Intel's compiler, the
precision i8 names the arithmetic of the device, which is f16 where a model is not quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator.arithmetic.settings import (
    HIGHER_PRECISION,
    INFINITY,
    MODE_PARAMS,
    OVERFLOW,
    SATURATE,
    kept_layers,
    unknown_layer,
)
from softnpu.emulator.blob.container import SECURE
from softnpu.emulator.blob.kernel_plan import TIMEOUT
from softnpu.emulator.compiler.option_values import Option, Values, any_text, bad_value, choice, integer
from softnpu.emulator.interface.messages import CompilerOptionsAnswer
from softnpu.emulator.interface.profiling import CLOCK_PROPERTY
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.kernels import replacements

if TYPE_CHECKING:
    from softnpu.emulator.links.compiler import OptionsJob

ARGUMENT_LIMIT = 1 << 40
"""Most bytes of one argument."""
COMPILER = "softnpu-compiler 1.10"
PLATFORMS = {"3720": 2, "4000": 6, "5010": 3, "5020": 1}
"""The supported platforms, with their tiles; the arithmetic is the host's in any case."""
COMPILER_VERSION = (7, 6)
"""In the real compiler's numbering: from 5.9 arguments go by index, up to 7.26 programs remove Identity."""
NEWEST_OPSET = 16

PRECISION = "INFERENCE_PRECISION_HINT"
PLATFORM = "NPU_PLATFORM"
TILES = "NPU_TILES"
LOG_LEVEL = "LOG_LEVEL"
PROFILING = "PERF_COUNT"
STRIDES_FOR = "NPU_ENABLE_STRIDES_FOR"
TO_STATIC = "NPU_DYNAMIC_SHAPE_TO_STATIC"
EMBED_BELOW = "NPU_WEIGHTS_EMBED_THRESHOLD"
STATES_INIT = "NPU_STATES_INIT"
STATES_DYNAMIC = "NPU_STATES_DYNAMIC"
WEIGHTLESS = "ENABLE_WEIGHTLESS"
CALL_NUMBER = "WS_COMPILE_CALL_NUMBER"
UNBOUNDED_BYTES = "NPU_UNBOUNDED_BYTES"
STRICT = "NPU_STRICT"

# The CPU plugin's word in OPTIMIZATION_CAPABILITIES for each precision that is the host's. Without the
# capability it takes another precision silently.
_CAPABILITY = {"f32": "FP32", "bf16": "BF16"}
_DEVICE = "f16"
"""The precision of the device: its arithmetic is the same on every host (`emulator/arithmetic`)."""
_HINTS = {"f16": _DEVICE, "i8": _DEVICE}
"""Precisions that OpenVINO's NPU plugin knows and reports for the device; f16 is its default."""
_OF_THE_DEVICE = "AUTO_DETECT"
_LOGGED = {"LOG_INFO", "LOG_DEBUG", "LOG_TRACE"}


class Settings(msgspec.Struct, frozen=True):
    """The effective configuration of one compilation: the value of every property.

    `hint` is the precision that build flags have named for the arithmetic of the device, if they did.
    """

    values: dict[str, str]
    hint: str = ""

    @property
    def engine(self) -> dict[str, str]:
        """The properties recorded in the blob because the engine needs them at execution.

        Of a model in f16 also how an overflow ends, and which layers stay in f32.
        """
        needed = [name for name, option in OPTIONS.items() if option.engine]
        recorded = {name: self.values[name] for name in needed if self.values[name]}
        if self.precision == _DEVICE:
            recorded[OVERFLOW] = self.values[OVERFLOW]
            if layers := kept_layers(self.values[MODE_PARAMS]):
                recorded[MODE_PARAMS] = f"{HIGHER_PRECISION}={','.join(layers)}"
        return recorded

    @property
    def precision(self) -> str:
        """Element type of the arithmetic: `f32`, `bf16` or `f16`."""
        return self.values[PRECISION]

    @property
    def host_precision(self) -> str:
        """The precision of OpenVINO's CPU runtime: f32 also for f16, whose rounding is ours."""
        return host_precision(self.precision)

    @property
    def platform(self) -> str:
        """The platform to compile for: that of the device, unless the property names another one."""
        return self.values[PLATFORM]

    @property
    def strict(self) -> bool:
        """Whether to refuse what silicon is known to refuse."""
        return self.values[STRICT] == "YES"

    def made_strict(self, strict: bool) -> Settings:
        """Return the same, strict if the daemon is: a client cannot turn that off."""
        return Settings({**self.values, STRICT: "YES"}, self.hint) if strict else self

    def without_profiling(self) -> Settings:
        """Return the same without profiling."""
        return Settings({**self.values, PROFILING: "NO"}, self.hint)

    @property
    def logged(self) -> bool:
        """Whether the build log has more than the state of the cache."""
        return self.values[LOG_LEVEL] in _LOGGED

    @property
    def makes_static(self) -> bool:
        """Whether dynamic dimensions become static at their upper bounds."""
        return self.values[TO_STATIC] == "YES"

    @property
    def initial_states(self) -> bool:
        """Whether to compile the graph that computes the initial values of the states."""
        return self.values[STATES_INIT] == "YES"

    @property
    def dynamic_states(self) -> bool:
        """Whether states may have another shape after every execution."""
        return self.values[STATES_DYNAMIC] == "YES"

    @property
    def separates_weights(self) -> bool:
        """Whether the weights become inputs: an init graph, then the main graph."""
        return self.values[WEIGHTLESS] == "YES"

    @property
    def call_number(self) -> int:
        """Number of this model's graphs already compiled with separated weights."""
        return int(self.values[CALL_NUMBER])

    @property
    def embed_below(self) -> int:
        """Constants of fewer bytes go into the blob."""
        return int(self.values[EMBED_BELOW])

    @property
    def kernels_for(self) -> dict[str, str]:
        """Own kernels for standard operations, by type."""
        return replacements.parse(self.values[replacements.PROPERTY]) or {}

    @property
    def strides_for(self) -> tuple[str, ...]:
        """Arguments, by name or index, that executions may give strides for."""
        return tuple(name.strip() for name in self.values[STRIDES_FOR].split(",") if name.strip())


def _performance_hint() -> Values:
    def accept(text: str) -> str | None:
        # several devices are the application's affair: to one of them it is THROUGHPUT
        return {"CUMULATIVE_THROUGHPUT": "THROUGHPUT"}.get(text, text if text in hints else None)

    hints = ("LATENCY", "THROUGHPUT")
    return " or ".join((*hints, "CUMULATIVE_THROUGHPUT")), accept


def _platform() -> Values:
    def accept(text: str) -> str | None:
        # OpenVINO writes a platform with or without its family: 4000, NPU4000 and VPU4000 are one
        bare = text.removeprefix("NPU").removeprefix("VPU")
        return bare if bare in (*PLATFORMS, _OF_THE_DEVICE) else None

    return " or ".join((*PLATFORMS, _OF_THE_DEVICE)), accept


def _kernels_for() -> Values:
    return replacements.ALLOWED, lambda text: None if replacements.parse(text) is None else text


def _known(allowed: Values, default: str) -> Option:
    return Option(*allowed, default=default)


_YES_NO = choice("NO", "YES")

OPTIONS: dict[str, Option] = {
    PRECISION: Option(*choice("f32", "bf16", "f16"), default="f32", engine=True),
    "PERFORMANCE_HINT": Option(*_performance_hint(), default="LATENCY", engine=True),
    "INFERENCE_NUM_THREADS": Option(*integer(0), default="0", engine=True),
    "EXECUTION_MODE_HINT": Option(*choice("ACCURACY", "PERFORMANCE"), default="ACCURACY", engine=True),
    PROFILING: Option(*_YES_NO, default="NO", engine=True),
    CLOCK_PROPERTY: Option(*choice("HOST", "DEVICE"), default="", engine=True),
    PLATFORM: Option(*_platform(), default=_OF_THE_DEVICE),
    LOG_LEVEL: _known(
        choice("LOG_NONE", "LOG_ERROR", "LOG_WARNING", "LOG_INFO", "LOG_DEBUG", "LOG_TRACE"), "LOG_NONE"
    ),
    EMBED_BELOW: _known(integer(0), "0"),
    STRIDES_FOR: _known(any_text(), ""),
    STATES_INIT: _known(_YES_NO, "NO"),
    STATES_DYNAMIC: _known(_YES_NO, "NO"),
    WEIGHTLESS: _known(_YES_NO, "NO"),
    "NPU_SEPARATE_WEIGHTS_VERSION": _known(choice("ITERATIVE", "ONE_SHOT"), "ITERATIVE"),
    CALL_NUMBER: _known(integer(0), "0"),
    "CACHE_MODE": _known(choice("optimize_size", "optimize_speed"), "optimize_speed"),
    # recorded, so that a strict daemon knows which blobs were compiled so
    STRICT: Option(*_YES_NO, default="", engine=True),
    # recorded, so that no engine keeps it on disk
    SECURE: Option(*_YES_NO, default="", engine=True),
    TIMEOUT: Option(*integer(0), default="", engine=True),
    replacements.PROPERTY: _known(_kernels_for(), ""),
    UNBOUNDED_BYTES: Option(*integer(1, ARGUMENT_LIMIT), default="", engine=True),
    TILES: Option(*integer(1), default="", engine=True),
    "NPU_MAX_TILES": _known(integer(1), ""),
    "NPU_STEPPING": _known(integer(0), ""),
    "NPU_DMA_ENGINES": _known(integer(1), ""),
    "NPU_BATCH_MODE": _known(choice("AUTO", "COMPILER", "PLUGIN"), "AUTO"),
    "NPU_MODEL_SERIALIZER_VERSION": _known(choice("AUTO", "ALL_WEIGHTS_COPY", "NO_WEIGHTS_COPY"), "AUTO"),
    "NPU_COMPILATION_MODE": _known(any_text(), ""),
    MODE_PARAMS: _known(any_text(), ""),
    OVERFLOW: _known(choice(SATURATE, INFINITY), SATURATE),
    "NPU_BACKEND_COMPILATION_PARAMS": _known(any_text(), ""),
    TO_STATIC: _known(_YES_NO, "NO"),
    "NPU_COMPILER_DYNAMIC_QUANTIZATION": _known(_YES_NO, "NO"),
    "NPU_QDQ_OPTIMIZATION": _known(_YES_NO, "NO"),
    "NPU_QDQ_OPTIMIZATION_AGGRESSIVE": _known(_YES_NO, "NO"),
    "NPU_TURBO": _known(_YES_NO, "NO"),
    "COMPILATION_NUM_THREADS": _known(integer(0), "0"),
    "PERFORMANCE_HINT_NUM_REQUESTS": _known(integer(0), "0"),
    "MODEL_PRIORITY": _known(choice("LOW", "MEDIUM", "HIGH", "DEFAULT"), "MEDIUM"),
    "DEVICE_ID": _known(any_text(), ""),
}
"""Every property by name. 0 threads means all cores of the host; without tiles the device chooses.

Without an effect, because OpenVINO's CPU runtime does the arithmetic: tiles, stepping, DMA engines,
compilation modes and their parameters (but the list of layers in f32), quantisation, turbo (a queue has its
own), numbers of requests and threads of the compiler.
"""


def host_precision(precision: str) -> str:
    """Return the precision of OpenVINO's CPU runtime for a precision of the arithmetic."""
    return "f32" if precision == _DEVICE else precision


def effective(
    config: Mapping[str, str], platform: str, subject: str, flags: Mapping[str, str] | None = None
) -> Settings:
    """Return the effective values for a compilation with `config` on a device of `platform`.

    `flags` are those of `config` that came as build flags. Refuses an unknown property
    (`ERROR_UNSUPPORTED_FEATURE`) and a bad value (`ERROR_INVALID_ARGUMENT`).
    """
    values = {name: option.default for name, option in OPTIONS.items()}
    named = (flags or {}).get(PRECISION, "")
    hint = named if named in _HINTS else ""
    if hint:
        values[PRECISION] = _HINTS[hint]
    for name, text in config.items():
        option = OPTIONS.get(name)
        if option is None:
            raise _unknown(name, subject)
        if name == PRECISION and hint:
            continue
        value = option.accept(text)
        if value is None:
            raise bad_value(name, text, option.allowed, subject)
        values[name] = value
    if values[PLATFORM] == _OF_THE_DEVICE:
        values[PLATFORM] = platform
    most = PLATFORMS.get(values[PLATFORM])
    if values[PRECISION] == _DEVICE and (unknown := unknown_layer(values[MODE_PARAMS])):
        raise _unknown_layer(*unknown, subject)
    if values[TILES] and most is not None and int(values[TILES]) > most:
        allowed = f"at most {most}, the tiles of platform {values[PLATFORM]}"
        raise bad_value(TILES, values[TILES], allowed, subject)
    return Settings(values, hint)


def merged(config: Mapping[str, str], from_flags: Mapping[str, str], subject: str) -> dict[str, str]:
    """Merge properties from two sources; refuse conflicting values with `ERROR_INVALID_ARGUMENT`."""
    for name in config.keys() & from_flags.keys():
        if config[name] != from_flags[name]:
            raise bad_value(name, f"{config[name]}' and '{from_flags[name]}", "one value", subject)
    return {**config, **from_flags}


def needs_openvino(question: OptionsJob) -> bool:
    """Whether the answer depends on what this host can compute: it does for a precision."""
    return question.option == PRECISION and question.value is not None


def answer(job: OptionsJob, capabilities: Callable[[], Collection[str]]) -> CompilerOptionsAnswer:
    """Answer a question about the compiler's properties; `capabilities` are asked if `needs_openvino`."""
    major, minor = COMPILER_VERSION
    return CompilerOptionsAnswer(
        major=major,
        minor=minor,
        opset=NEWEST_OPSET,
        options=tuple(OPTIONS),
        supported=_is_supported(job, capabilities),
    )


def _is_supported(job: OptionsJob, capabilities: Callable[[], Collection[str]]) -> bool:
    """Whether the compiler knows a property and, if one is given, accepts this value of it in build flags."""
    if job.value is None:
        return job.option in OPTIONS
    try:
        settings = effective({job.option: job.value}, job.platform, "", {job.option: job.value})
        if needs_openvino(job):
            with_precision(settings, capabilities(), "")
    except Refused:
        return False
    return True


def with_precision(settings: Settings, capabilities: Collection[str], subject: str) -> Settings:
    """Return the settings, if this host computes in their precision.

    `capabilities` are the CPU plugin's OPTIMIZATION_CAPABILITIES. Refuses with `ERROR_UNSUPPORTED_FEATURE` a
    precision that the host lacks.
    """
    precision = settings.precision
    if precision == _DEVICE or _CAPABILITY[precision] in capabilities:
        return settings
    offered = [name for name, capability in _CAPABILITY.items() if capability in capabilities] + [_DEVICE]
    raise refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, property {PRECISION}",
        found=f"'{precision}', which this host's processor cannot compute",
        expected=" or ".join(offered),
        property=PRECISION,
    )


def precision_remark(settings: Settings) -> str:
    """Return the line of the build log on a hint that means another precision; empty if there is none."""
    if settings.hint in ("", settings.precision):
        return ""
    return f"{PRECISION} {settings.hint}: {settings.precision}, and integers where the model is quantised\n"


def _unknown(name: str, subject: str) -> Refused:
    import difflib  # late: for errors only

    near = difflib.get_close_matches(name[:100].upper(), OPTIONS, n=3)
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, property {name}",
        found="unknown to the compiler",
        expected=f"one of {', '.join(OPTIONS)}",
        hint=f"did you mean {' or '.join(near)}?" if near else "",
        property=name,
    )


def _unknown_layer(name: str, near: str, subject: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        f"{subject}, property {MODE_PARAMS}, {HIGHER_PRECISION}",
        found=f"'{name}'",
        expected="types of operations such as Sqrt, Power and ReduceMean, or Add_RMSNorm, Add_BeforeRMSNorm,"
        " ReduceSquare",
        hint=f"did you mean {near}?" if near else "",
        property=MODE_PARAMS,
    )
