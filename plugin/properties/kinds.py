"""Kinds of property values: accepted values, the stored type, the text for the compiler.

A value is given as an OpenVINO object, as text, or as a Python value, and stored as the type that OpenVINO's
Python API returns for the property.
"""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from openvino._pyopenvino import OVAny

INT_MAX = 2**31 - 1


class NotAllowed(ValueError):
    """A value that a kind does not accept. Its text, if any, replaces the allowed values in the message."""


class Kind(ABC):
    """Base. `type` is the Python type of a stored value, `allowed` describes accepted ones."""

    type: type
    allowed: str

    @abstractmethod
    def accept(self, value: Any) -> Any:
        """Convert `value` to the stored type. Raises `NotAllowed`."""

    def text(self, value: Any) -> str:
        """Return a stored value as OpenVINO writes it."""
        return str(value)


def plain(value: Any) -> Any:
    """Unwrap a value of OpenVINO (`ov.properties.hint.model_priority(...)[1]`) or numpy."""
    if isinstance(value, OVAny):
        return value.value
    return value.item() if isinstance(value, np.generic) else value


class Switch(Kind):
    """True or False; as text YES, NO, TRUE or FALSE."""

    type = bool
    allowed = "YES or NO"

    def accept(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        named = {"YES": True, "TRUE": True, "NO": False, "FALSE": False}
        if isinstance(value, str) and value.upper() in named:
            return named[value.upper()]
        raise NotAllowed

    def text(self, value: Any) -> str:
        return "YES" if value else "NO"


class Whole(Kind):
    """An integer from `low` to `high`."""

    type = int

    def __init__(self, low: int, high: int = INT_MAX) -> None:
        self.low = low
        self.high = high
        self.allowed = f"an integer from {low} to {high}"

    def accept(self, value: Any) -> int:
        if isinstance(value, bool):
            raise NotAllowed
        try:
            number = int(value) if isinstance(value, str) else operator.index(value)
        except (TypeError, ValueError):
            raise NotAllowed from None
        if not self.low <= number <= self.high:
            raise NotAllowed
        return number


class Text(Kind):
    """Text. `check` raises `NotAllowed` with the allowed values."""

    type = str

    def __init__(self, allowed: str = "text", check: Callable[[str], object] = str) -> None:
        self.allowed = allowed
        self.check = check

    def accept(self, value: Any) -> str:
        if not isinstance(value, str):
            raise NotAllowed
        self.check(value)
        return str(value)


class PathKind(Kind):
    """A path, as text or as a path object; empty for none."""

    type = str
    allowed = "a path, or empty"

    def accept(self, value: Any) -> str:
        if not isinstance(value, str | os.PathLike):
            raise NotAllowed
        path = os.fspath(value)
        if not isinstance(path, str) or "\0" in path:
            raise NotAllowed
        return path


class Choice(Kind):
    """One of the values of `options`, given as itself or as its text. `also` has further texts."""

    def __init__(self, options: Mapping[str, Any], also: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.also = also or {}
        self.type = type(next(iter(options.values())))
        self.allowed = " or ".join(options)

    def accept(self, value: Any) -> Any:
        if isinstance(value, str):
            for text, option in (*self.options.items(), *self.also.items()):
                if text.casefold() == value.casefold():
                    return option
            raise NotAllowed
        for option in self.options.values():
            # OpenVINO's enumerations cannot be compared with other types
            if type(option) is type(value) and option == value:
                return option
        raise NotAllowed

    def text(self, value: Any) -> str:
        return next(text for text, option in self.options.items() if option == value)


def words(*texts: str) -> Choice:
    """Return a choice of texts."""
    return Choice({text: text for text in texts})


class Names(Kind):
    """A list of texts; as text separated by commas or blanks."""

    type = list

    def __init__(self, allowed: str, check: Callable[[Sequence[str]], object]) -> None:
        self.allowed = allowed
        self.check = check

    def accept(self, value: Any) -> list[str]:
        if isinstance(value, str):
            value = value.replace(",", " ").split()
        if not isinstance(value, list | tuple | set) or not all(isinstance(name, str) for name in value):
            raise NotAllowed
        names = sorted({str(name) for name in value})
        self.check(names)
        return names

    def text(self, value: Any) -> str:
        return " ".join(value)


class Callbacks(Kind):
    """Two functions of the program, each from bytes to bytes; None for none. Nobody reads them."""

    type = type(None)
    allowed = "a list of two functions that take and return bytes, to encrypt and to decrypt"

    def accept(self, value: Any) -> Any:
        if value is None:
            return None
        is_pair = isinstance(value, list | tuple) and len(value) == 2
        if not is_pair or not all(callable(each) for each in value):
            raise NotAllowed
        return tuple(value)

    def text(self, value: Any) -> str:
        return "none" if value is None else "set"


class ReadOnly(Kind):
    """A value that cannot be set."""

    allowed = "nothing: it can only be read"

    def __init__(self, type: type) -> None:
        self.type = type

    def accept(self, value: Any) -> Any:
        raise NotAllowed(f"nothing in place of {value!r}")
