"""The values of a property: which are allowed, in words and as a check, and the refusal of others."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from softnpu.emulator.interface.result import Refused, ZeResult, refuse

Values = tuple[str, Callable[[str], str | None]]
"""Allowed values in words, and the check that normalises a value (None: not allowed)."""

_INT_MAX = 2**31 - 1  # OpenVINO parses these properties as a 32-bit int
_TEXT_MAX = 4096


class Option(msgspec.Struct, frozen=True):
    """One property: allowed values in words, the check that normalises a value (None: not allowed).

    `engine` says that the engine needs the effective value at execution, `default` is the value if the client
    gives none.
    """

    allowed: str
    accept: Callable[[str], str | None]
    default: str
    engine: bool = False


def choice(*values: str) -> Values:
    """Return the check for one of these words."""
    return " or ".join(values), lambda text: text if text in values else None


def integer(low: int, high: int = _INT_MAX) -> Values:
    """Return the check for an integer of a range, written in any way."""

    def accept(text: str) -> str | None:
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(high))):
            return None
        return str(int(text)) if low <= int(text) <= high else None

    return f"an integer from {low} to {high}", accept


def any_text() -> Values:
    """Return the check for a text of bounded length."""
    return f"text of at most {_TEXT_MAX} characters", lambda text: text if len(text) <= _TEXT_MAX else None


def bad_value(name: str, text: str, allowed: str, subject: str) -> Refused:
    """Return the refusal of a value, `ERROR_INVALID_ARGUMENT`."""
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        f"{subject}, property {name}",
        found=f"'{text}'",
        expected=allowed,
        property=name,
    )
