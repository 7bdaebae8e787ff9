"""Numbers and switches in environment variables: honoured, or refused by the name of the variable.

The form is that of interface.md, section 1, so that every driver reads the same.
"""

from __future__ import annotations

import json
import os
import re

from softnpu.emulator.interface.environment import ENV_IDLE_S, ENV_SAVED_ENV, ENV_SELF_CHECK, ENV_SPIN_US
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

DEFAULT_SPIN_US = 50
MAX_SPIN_US = 1_000_000
MIN_IDLE_S = 0.1
MAX_IDLE_S = 604_800.0

_WHOLE = re.compile(r"[0-9]{1,20}")
_DECIMAL = re.compile(r"[0-9]{1,20}|(?=.{3,20}\Z)[0-9]+\.[0-9]+")


def spin_us() -> int:
    """`SOFTNPU_SPIN_US`: the longest busy wait, in microseconds."""
    text = os.environ.get(ENV_SPIN_US)
    if not text:
        return DEFAULT_SPIN_US
    if _WHOLE.fullmatch(text) and int(text) <= MAX_SPIN_US:
        return int(text)
    raise _bad(ENV_SPIN_US, text, f"whole microseconds from 0 (none) to {MAX_SPIN_US}")


def idle_s(default: float) -> float:
    """`SOFTNPU_IDLE_S`: the seconds without a client after which a daemon ends; 0 for one that stays."""
    text = os.environ.get(ENV_IDLE_S)
    if not text:
        return default
    if _DECIMAL.fullmatch(text) and is_idle_time(float(text)):
        return float(text)
    raise _bad(ENV_IDLE_S, text, IDLE_TIMES)


def self_check() -> bool:
    """`SOFTNPU_SELF_CHECK`: whether engines try out what they load."""
    text = os.environ.get(ENV_SELF_CHECK, "")
    if text not in {"", "0", "1"}:
        raise _bad(ENV_SELF_CHECK, text, "0 or 1")
    return text == "1"


IDLE_TIMES = f"seconds: 0 for a daemon that stays, or {MIN_IDLE_S:g} to {MAX_IDLE_S:.0f}"


def is_idle_time(seconds: float) -> bool:
    """Whether a daemon can have this idle time."""
    return seconds == 0 or MIN_IDLE_S <= seconds <= MAX_IDLE_S


def variables_outside(text: str) -> dict[str, str]:
    """What `SOFTNPU_SAVED_ENV` holds: variables as they were before `softnpu run`, empty for unset ones."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and all(_is_variable(name, value) for name, value in found.items()):
        return found
    raise _bad(ENV_SAVED_ENV, text, "a JSON object of strings, as 'softnpu run' sets it")


def _is_variable(name: str, value: object) -> bool:
    if not isinstance(value, str) or not name or "=" in name:
        return False
    try:
        return b"\0" not in os.fsencode(name + value)
    except UnicodeEncodeError:
        return False


def _bad(variable: str, text: str, expected: str) -> Refused:
    found = repr(text if len(text) <= 40 else text[:40] + "...")
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        variable,
        found=found,
        expected=expected,
        hint="correct or unset the variable",
    )
