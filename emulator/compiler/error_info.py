"""Exceptions of other libraries and of the system, as the typed faults of the firmware interface.

OpenVINO raises C++ exceptions, which arrive as the few Python types in `OPENVINO_ERRORS`; their text is
several lines of source locations around the one line that helps a person.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse

# std::exception and ov::Exception; invalid_argument and text that is not UTF-8; out_of_range; overflow_error
OPENVINO_ERRORS = (RuntimeError, ValueError, IndexError, OverflowError)

_TEXT_LIMIT = 1000
_REASON_LIMIT = 400
_NO_SPACE = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT}
_NOISE = re.compile(r"^(Exception from |Check '.*' failed at |While validating node |Not Implemented:?$|$)")
_NODE = re.compile(r"While validating node '(?:\w+::)?(\w+) .* with friendly_name '(.*)':")


def reason(error: BaseException) -> str:
    """The essential of an OpenVINO error: the operation that it is about and its own words."""
    text = str(error)
    words = " ".join(line.strip() for line in text.splitlines() if not _NOISE.match(line.strip()))
    node = _NODE.search(text)
    if node:
        words = f"operation '{node[2]}' ({node[1]}): {words}"
    return shortened(words or text.strip() or type(error).__name__, _REASON_LIMIT).rstrip(". ")


def shortened(text: str, limit: int = _TEXT_LIMIT) -> str:
    """`text` with at most `limit` characters, in characters that every terminal and log can show."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 3] + "..."


def sendable(info: ErrorInfo) -> ErrorInfo:
    """The fault with texts short enough for a control frame, whatever the client named its model."""
    return msgspec.structs.replace(
        info,
        object=shortened(info.object),
        found=shortened(info.found),
        expected=shortened(info.expected),
        hint=shortened(info.hint),
    )


@contextmanager
def openvino_faults(result: ZeResult, subject: str, expected: str, hint: str = "") -> Iterator[None]:
    """Errors that OpenVINO raises in the block become a refusal with `result`.

    Running out of memory is `ERROR_OUT_OF_HOST_MEMORY`, also where OpenVINO wraps it in its own exception.
    """
    try:
        yield
    except OPENVINO_ERRORS as error:
        if "bad_alloc" in str(error):
            raise out_of_memory(subject) from error
        raise refuse(result, subject, found=reason(error), expected=expected, hint=hint) from error


def out_of_memory(subject: str) -> Refused:
    """The refusal for a host without enough memory."""
    return refuse(
        ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        subject,
        found="the host has not enough memory to compile it",
        expected="free memory for the model's operations",
    )


def not_text(subject: str, error: UnicodeDecodeError) -> ErrorInfo:
    """The fault for an IR with names that are not UTF-8."""
    return ErrorInfo(
        result=int(ZeResult.ERROR_UNSUPPORTED_FEATURE),
        object=f"{subject}, IR",
        found=f"the name {shortened(repr(error.object), 100)}",
        expected="names in UTF-8",
    )


def system_fault(subject: str, error: OSError) -> ErrorInfo:
    """The fault for a failed system call: out of memory, or else a failed build."""
    full = error.errno in _NO_SPACE
    return ErrorInfo(
        result=int(ZeResult.ERROR_OUT_OF_HOST_MEMORY if full else ZeResult.ERROR_MODULE_BUILD_FAILURE),
        object=subject,
        found=error.strerror or str(error),
        expected="free memory" if full else "files that can be read and mapped",
    )
