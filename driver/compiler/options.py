"""The properties that the compiler understands: their values, their defaults, what the engine gets of them.

Names and values are OpenVINO's own (`ov::hint`, `ov::intel_npu`), as text. An explicit choice is honoured or
refused, never replaced by something near it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from softnpu.emulator.interface.result import Refused, ZeResult, refuse

PRECISION = "INFERENCE_PRECISION_HINT"
PLATFORM = "NPU_PLATFORM"
LOG_LEVEL = "LOG_LEVEL"

# The CPU plugin's word in OPTIMIZATION_CAPABILITIES for each precision. Without the capability it takes
# another precision silently: f16 asked for on a host with bf16 only gave bf16.
_CAPABILITY = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
_INT_MAX = 2**31 - 1  # OpenVINO parses these properties as a 32-bit int


@dataclass(frozen=True)
class Option:
    """One property: allowed values in words, the check that normalises a value (None: not allowed).

    `engine` says that the engine needs the effective value at execution, `default` is the value if the client
    gives none.
    """

    allowed: str
    accept: Callable[[str], str | None]
    default: str
    engine: bool = False


@dataclass(frozen=True)
class Settings:
    """The effective configuration of one compilation; `engine` is what the blob records."""

    engine: dict[str, str]
    log_level: str

    @property
    def precision(self) -> str:
        """Element type of the arithmetic: `f32`, `bf16` or `f16`."""
        return self.engine[PRECISION]


def _choice(*values: str) -> tuple[str, Callable[[str], str | None]]:
    return " or ".join(values), lambda text: text if text in values else None


def _integer(low: int) -> tuple[str, Callable[[str], str | None]]:
    def accept(text: str) -> str | None:
        if not (text.isascii() and text.isdecimal() and len(text) <= 10):
            return None
        return str(int(text)) if low <= int(text) <= _INT_MAX else None

    return f"an integer from {low} to {_INT_MAX}", accept


OPTIONS: dict[str, Option] = {
    PRECISION: Option(*_choice("f32", "bf16", "f16"), default="f32", engine=True),
    "PERFORMANCE_HINT": Option(*_choice("LATENCY", "THROUGHPUT"), default="LATENCY", engine=True),
    "INFERENCE_NUM_THREADS": Option(*_integer(0), default="0", engine=True),
    "EXECUTION_MODE_HINT": Option(*_choice("ACCURACY", "PERFORMANCE"), default="ACCURACY", engine=True),
    "PERF_COUNT": Option(*_choice("NO", "YES"), default="NO", engine=True),
    PLATFORM: Option("the platform of the device or AUTO_DETECT", lambda text: text, default="AUTO_DETECT"),
    LOG_LEVEL: Option(
        *_choice("LOG_NONE", "LOG_ERROR", "LOG_WARNING", "LOG_INFO", "LOG_DEBUG", "LOG_TRACE"),
        default="LOG_NONE",
    ),
    "NPU_TILES": Option(*_integer(1), default=""),
}
"""Every property by name. 0 threads means all cores of the host; no tiles given leaves them to the device."""


def effective(
    config: Mapping[str, str], platform: str, capabilities: Collection[str], subject: str
) -> Settings:
    """The values that hold for a compilation with `config` for `platform`.

    `capabilities` are the CPU plugin's OPTIMIZATION_CAPABILITIES. Refuses an unknown property or a precision
    that the host lacks (`ERROR_UNSUPPORTED_FEATURE`) and a bad value (`ERROR_INVALID_ARGUMENT`).
    """
    values = {name: option.default for name, option in OPTIONS.items()}
    for name, text in config.items():
        option = OPTIONS.get(name)
        if option is None:
            raise _unknown(name, subject)
        value = option.accept(text)
        if value is None:
            raise _bad_value(name, text, option.allowed, subject)
        values[name] = value
    _check_platform(values[PLATFORM], platform, subject)
    _check_precision(values[PRECISION], capabilities, subject)
    engine = {name: values[name] for name, option in OPTIONS.items() if option.engine}
    return Settings(engine, values[LOG_LEVEL])


def _check_platform(asked: str, platform: str, subject: str) -> None:
    if asked != "AUTO_DETECT" and _bare(asked) != _bare(platform):
        raise _bad_value(PLATFORM, asked, f"{platform} (the platform of this device) or AUTO_DETECT", subject)


def _bare(platform: str) -> str:
    """OpenVINO writes a platform with or without its family: 4000, NPU4000 and VPU4000 are one."""
    return platform.removeprefix("NPU").removeprefix("VPU")


def _check_precision(precision: str, capabilities: Collection[str], subject: str) -> None:
    if _CAPABILITY[precision] in capabilities:
        return
    offered = [name for name, capability in _CAPABILITY.items() if capability in capabilities]
    raise refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, property {PRECISION}",
        f"'{precision}', which this host's processor cannot compute",
        " or ".join(offered),
    )


def _unknown(name: str, subject: str) -> Refused:
    near = difflib.get_close_matches(name[:100].upper(), OPTIONS, n=3)
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, property {name}",
        "unknown to the compiler",
        f"one of {', '.join(OPTIONS)}",
        f"did you mean {' or '.join(near)}?" if near else "",
    )


def _bad_value(name: str, text: str, allowed: str, subject: str) -> Refused:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, f"{subject}, property {name}", f"'{text}'", allowed)
