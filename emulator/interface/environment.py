"""Numbers and switches in environment variables: what is there is honoured or refused by its name."""

from __future__ import annotations

import contextlib
import math
import os
from typing import TypeVar

from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.interface.version import ENV_SELF_CHECK, ENV_SPIN_US

Number = TypeVar("Number", int, float)

DEFAULT_SPIN_US = 50


def number(variable: str, kind: type[Number], default: Number, expected: str) -> Number:
    """What the variable says, `default` without it. Refuses what is no finite number of at least 0."""
    text = os.environ.get(variable)
    if not text:
        return default
    with contextlib.suppress(ValueError):
        value = kind(text)
        if 0 <= value < math.inf:
            return value
    raise refuse(
        ZeResult.ERROR_INVALID_ARGUMENT, variable, repr(text), expected, "correct or unset the variable"
    )


def spin_us() -> int:
    """`SOFTNPU_SPIN_US`: the longest busy wait, in microseconds."""
    return number(ENV_SPIN_US, int, DEFAULT_SPIN_US, "whole microseconds, 0 for none")


def self_check() -> bool:
    """`SOFTNPU_SELF_CHECK`: whether engines try out what they load."""
    text = os.environ.get(ENV_SELF_CHECK, "")
    if text not in {"", "0", "1"}:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT, ENV_SELF_CHECK, repr(text), "0 or 1", "correct or unset it"
        )
    return text == "1"
