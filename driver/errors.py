"""The driver's exception: a Level Zero result and the reason for it."""

from __future__ import annotations

import threading
from typing import Protocol

from softnpu.emulator.interface.result import ErrorInfo, ZeResult


class _LastError(threading.local):
    """The last error of each thread."""

    call = ""
    info: ErrorInfo | None = None


_last = _LastError()


def last_description() -> str:
    """Return the text of the calling thread's last `ZeError`; empty if none."""
    return "" if _last.info is None else _text(_last.call, _last.info)


def _text(call: str, info: ErrorInfo) -> str:
    return f"{call}: {info.name} ({info.result:#x}): {info}"


class ZeError(Exception):
    """A call ended with a result other than SUCCESS or NOT_READY.

    `result` is the Level Zero code (an int if this version does not know its name), `call` the failed call,
    `info` the object, the value found, what was expected and the next step.
    """

    def __init__(self, call: str, info: ErrorInfo) -> None:
        super().__init__(call, info)
        self.call = call
        self.info = info
        _last.call, _last.info = call, info

    @property
    def result(self) -> int:
        try:
            return ZeResult(self.info.result)
        except ValueError:
            return self.info.result

    def __str__(self) -> str:
        return _text(self.call, self.info)


class NoAnswerError(ZeError):
    """The daemon has not answered in time: it hangs, or is stopped."""


def error(
    call: str, result: ZeResult, object: str, *, found: str, expected: str = "", hint: str = ""
) -> ZeError:
    """Return the exception for a failed check of the driver itself; the caller raises it."""
    return ZeError(
        call, ErrorInfo(result=int(result), object=object, found=found, expected=expected, hint=hint)
    )


def check_type(call: str, name: str, value: object, *kinds: type) -> None:
    """Raise `ZeError` with INVALID_ARGUMENT unless the argument is of one of these types."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise invalid_argument(call, name, found=f"a {type(value).__name__}", expected=expected)


class _MakeError(Protocol):
    def __call__(
        self, call: str, object: str, *, found: str, expected: str = "", hint: str = ""
    ) -> ZeError: ...


def _with(result: ZeResult) -> _MakeError:
    def make(call: str, object: str, *, found: str, expected: str = "", hint: str = "") -> ZeError:
        return error(call, result, object, found=found, expected=expected, hint=hint)

    return make


invalid_argument = _with(ZeResult.ERROR_INVALID_ARGUMENT)
invalid_size = _with(ZeResult.ERROR_INVALID_SIZE)
not_available = _with(ZeResult.ERROR_NOT_AVAILABLE)
null_pointer = _with(ZeResult.ERROR_INVALID_NULL_POINTER)
uninitialized = _with(ZeResult.ERROR_UNINITIALIZED)
