"""Environment variables honoured by both sides; invalid values are refused, naming the variable.

The format is that of interface.md, section 1, so that every driver reads the same. It imports little.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from softnpu.emulator.interface.result import Refused
    from softnpu.emulator.interface.status_messages import Clock

ENV_SOCKET = "SOFTNPU_SOCKET"
"""Path of the daemon's control socket, for programs and commands alike."""
ENV_AUTOSTART = "SOFTNPU_AUTOSTART"
"""`0`: a program that finds no daemon fails. Otherwise it starts one for its user."""
ENV_SPIN_US = "SOFTNPU_SPIN_US"
"""Longest busy wait of a driver or engine before it sleeps, in microseconds, or 0 for none [50]."""
ENV_LEASE = "SOFTNPU_LEASE"
"""Token of a lease: the program sees only the devices of that lease, and starts no daemon."""
ENV_DEVICES = "SOFTNPU_DEVICES"
"""Devices of a daemon, such as `4000`, `3720,5010` or `lunar-lake`."""
ENV_IDLE_S = "SOFTNPU_IDLE_S"
"""Seconds without clients until an automatically started daemon ends, or 0 for never [60]."""
ENV_PYTHON = "SOFTNPU_PYTHON"
"""The Python that starts a daemon for a program. Set by `softnpu run` and `env`."""
ENV_INJECT = "SOFTNPU_INJECT"
"""Faults that a daemon injects from its start, such as `hang:after=3`."""
ENV_SELF_CHECK = "SOFTNPU_SELF_CHECK"
"""`1`, for tests: an engine refuses a model that computes other results on bound client memory."""
ENV_CLOCK = "SOFTNPU_CLOCK"
"""Clock of the devices: `host` [default], `device` (predicted times) or `paced` (waits for them)."""
ENV_INFERENCE_US = "SOFTNPU_INFERENCE_US"
"""Reported microseconds of every inference, instead of the predicted time."""
ENV_STRICT = "SOFTNPU_STRICT"
"""`1`: a daemon refuses the models that silicon is known to refuse."""
ENV_ENGINE_CACHE = "SOFTNPU_ENGINE_CACHE"
"""Directory where engines cache what OpenVINO compiled. If empty, nothing is cached."""
ENV_NATIVE_TURNS = "SOFTNPU_NATIVE_TURNS"
"""`0`: engines run every submission in Python, for comparisons and debugging."""
ENV_CHECK = "SOFTNPU_CHECK"
"""Folder for notes, for `softnpu check`: of a daemon and all its programs, or of one. Empty: none."""
ENV_SAVED_ENV = "SOFTNPU_SAVED_ENV"
"""The previous values of changed variables, in JSON. Set by `softnpu run` and `env`."""

OF_DAEMON: Final = ("PATH", "HOME", "TMPDIR", "LANG", "TZ", "CXX", "GLIBC_TUNABLES")
"""Variables that a daemon inherits from the program that starts it."""
PREFIXES_OF_DAEMON: Final = ("LC_", "XDG_", "SOFTNPU_", "ONEDNN_", "DNNL_")
"""Prefixes of further ones. Those of oneDNN select instruction sets, which affect numbers."""
PREFIXES_OF_OPENVINO: Final = ("OV_", "OPENVINO_", "ONNX_")
"""Prefixes of variables that may change what OpenVINO reads."""
OF_PROGRAMS: Final = (ENV_SOCKET, ENV_AUTOSTART, ENV_LEASE, ENV_PYTHON, ENV_SAVED_ENV, "SOFTNPU_LOG")
"""A program's own settings, which no daemon inherits."""
OF_SETTINGS: Final = (
    ENV_DEVICES, ENV_CLOCK, ENV_INFERENCE_US, ENV_INJECT, ENV_STRICT, ENV_SELF_CHECK, ENV_NATIVE_TURNS,
    ENV_CHECK,
)  # fmt: skip
"""Settings of a daemon that decide what programs see. Those of times and caches change none of it.

A daemon that is not checked has a session checked alone that asks for it.
"""

TUNABLES: Final = "GLIBC_TUNABLES"
HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"
"""Huge pages for large heap blocks of a daemon's processes, where the kernel grants them on request.

Converting 2 GiB of weights took 1.15 s without, 0.7 s with it: most of the time went into page faults. A
process of a compiler, whose pages are all new, reads YOLOv8n in 19 ms instead of 23.
"""

TRACE_VARIABLE = "ZE_INTEL_NPU_LOGPERFETTO"
"""`1`: `softnpu run` writes a trace into the working directory, as the real driver does."""

DEFAULT_SPIN_US = 50
MAX_SPIN_US = 1_000_000
MAX_INFERENCE_US = 600_000_000
MIN_IDLE_S = 0.1
MAX_IDLE_S = 604_800.0

_WHOLE = r"[0-9]{1,20}"
_DECIMAL = r"[0-9]{1,20}|(?=.{3,20}\Z)[0-9]+\.[0-9]+"


def of_daemon(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a daemon inherits from the program that starts it: interface.md, section 1.

    It serves other programs as well, so it gets nothing that loads code into this one, or concerns it alone.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in OF_DAEMON or (name.startswith(PREFIXES_OF_DAEMON) and name not in OF_PROGRAMS)
    }
    return kept | with_huge_pages(kept)


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that asks for `HUGE_PAGES`; the user's choices come last and win."""
    chosen = environment.get(TUNABLES, "")
    return {TUNABLES: chosen if HUGE_PAGES in chosen else ":".join(filter(None, (HUGE_PAGES, chosen)))}


def asked_settings(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables with which a program asks for settings of its daemon, as `NAME=value`."""
    return tuple(f"{name}={environment[name]}" for name in OF_SETTINGS if environment.get(name))


def devices(default: str) -> tuple[str, ...]:
    """Return `SOFTNPU_DEVICES`: the platforms of the devices of a daemon, numbers or codenames."""
    return tuple((os.environ.get(ENV_DEVICES) or default).split(","))


def spin_us() -> int:
    """Return `SOFTNPU_SPIN_US`: the longest busy wait, in microseconds."""
    text = os.environ.get(ENV_SPIN_US)
    if not text:
        return DEFAULT_SPIN_US
    if _matches(_WHOLE, text) and int(text) <= MAX_SPIN_US:
        return int(text)
    raise _out_of_range(
        ENV_SPIN_US, found=text, expected=f"whole microseconds from 0 (none) to {MAX_SPIN_US}"
    )


def idle_s(default: float) -> float:
    """Return `SOFTNPU_IDLE_S`: the seconds without a client after which a daemon ends; 0: it stays."""
    text = os.environ.get(ENV_IDLE_S)
    if not text:
        return default
    if _matches(_DECIMAL, text) and is_idle_time(float(text)):
        return float(text)
    raise _out_of_range(ENV_IDLE_S, found=text, expected=IDLE_TIMES)


def self_check() -> bool:
    """Return `SOFTNPU_SELF_CHECK`: whether engines check what they load."""
    return _switch(ENV_SELF_CHECK)


def strict() -> bool:
    """Return `SOFTNPU_STRICT`: whether a daemon refuses what silicon refuses."""
    return _switch(ENV_STRICT)


def native_turns() -> bool:
    """Return `SOFTNPU_NATIVE_TURNS`: whether engines use their part in C++ for prepared submissions."""
    return _switch(ENV_NATIVE_TURNS, "1") and not is_checked()  # C++ notes nothing


def is_checked() -> bool:
    """Return whether this daemon and its programs are checked."""
    return bool(os.environ.get(ENV_CHECK))


def check_folder() -> str:
    """Return `SOFTNPU_CHECK`: where engines and programs write notes, empty: nowhere."""
    folder = os.environ.get(ENV_CHECK, "")
    if folder and not (os.path.isabs(folder) and os.access(folder, os.W_OK | os.X_OK)):
        raise _out_of_range(ENV_CHECK, found=folder, expected="the full path of a folder that can be written")
    return folder


def clock() -> Clock:
    """Return `SOFTNPU_CLOCK`: the clock of the devices of a daemon that starts by itself."""
    from softnpu.emulator.interface.status_messages import Clock

    text = os.environ.get(ENV_CLOCK) or Clock.HOST.value
    if text not in {each.value for each in Clock}:
        raise _out_of_range(ENV_CLOCK, found=text, expected="host, device or paced")
    return Clock(text)


def inference_us() -> int:
    """Return `SOFTNPU_INFERENCE_US`: the modelled time of every inference, 0 for the predicted one."""
    text = os.environ.get(ENV_INFERENCE_US) or "0"
    if not _matches(_WHOLE, text) or int(text) > MAX_INFERENCE_US:
        expected = f"whole microseconds from 0 (as predicted) to {MAX_INFERENCE_US}"
        raise _out_of_range(ENV_INFERENCE_US, found=text, expected=expected)
    return int(text)


def engine_cache() -> str:
    """Return `SOFTNPU_ENGINE_CACHE`, or `softnpu/engine` in the user's cache; empty: none."""
    chosen = os.environ.get(ENV_ENGINE_CACHE)
    if chosen is not None:
        return chosen and os.path.abspath(chosen)
    return user_cache("engine")


def user_cache(name: str) -> str:
    """Return a folder in the user's cache; empty if there is neither `XDG_CACHE_HOME` nor `HOME`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", ""), ".cache")
    return os.path.join(base, "softnpu", name) if os.path.isabs(base) else ""


IDLE_TIMES = f"seconds: 0 for a daemon that stays, or {MIN_IDLE_S:g} to {MAX_IDLE_S:.0f}"


def is_idle_time(seconds: float) -> bool:
    """Return whether this is a valid idle time for a daemon."""
    return seconds == 0 or MIN_IDLE_S <= seconds <= MAX_IDLE_S


def variables_outside(text: str) -> dict[str, str]:
    """Return the variables in `SOFTNPU_SAVED_ENV`, from before `softnpu run`; empty for unset ones."""
    if not text:
        return {}
    import json

    try:
        saved = json.loads(text)
    except (ValueError, RecursionError):
        saved = None
    if isinstance(saved, dict) and all(_is_variable(name, value) for name, value in saved.items()):
        return saved
    raise _out_of_range(
        ENV_SAVED_ENV, found=text, expected="a JSON object of strings, as 'softnpu run' sets it"
    )


def _is_variable(name: str, value: object) -> bool:
    if not isinstance(value, str) or not name or "=" in name:
        return False
    try:
        return b"\0" not in os.fsencode(name + value)
    except UnicodeEncodeError:
        return False


def _matches(pattern: str, text: str) -> bool:
    import re  # late: the variables are mostly unset

    return re.fullmatch(pattern, text) is not None


def _switch(variable: str, default: str = "0") -> bool:
    text = os.environ.get(variable) or default
    if text not in {"0", "1"}:
        raise _out_of_range(variable, found=text, expected="0 or 1")
    return text == "1"


def _out_of_range(variable: str, *, found: str, expected: str) -> Refused:
    from softnpu.emulator.interface.result import ZeResult, refuse

    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        variable,
        found=repr(found if len(found) <= 40 else found[:40] + "..."),
        expected=expected,
        hint="correct or unset the variable",
    )
