"""Conversion of OpenVINO's and the system's exceptions to error records."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.openvino.errors import OPENVINO_ERRORS, is_out_of_memory, reason, shortened

_NO_SPACE = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT}


@contextmanager
def openvino_errors(result: ZeResult, subject: str, expected: str, hint: str = "") -> Iterator[None]:
    """Turn errors that OpenVINO raises in the block into a refusal with `result`.

    Running out of memory is `ERROR_OUT_OF_HOST_MEMORY`, also where OpenVINO wraps it in its own exception.
    """
    try:
        yield
    except UnicodeDecodeError:
        raise  # a name: the worker reports which
    except OPENVINO_ERRORS as error:
        if is_out_of_memory(error):
            raise out_of_memory(subject) from error
        found = reason(error)
        if "from unsupported opset: " in found:
            hint = "an operation of another domain needs its kernel: Core().add_extension('FILE.wasm')"
        raise refuse(result, subject, found=found, expected=expected, hint=hint) from error


def out_of_memory(subject: str) -> Refused:
    """Return the refusal for a host without enough memory."""
    return refuse(
        ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        subject,
        found="the host has not enough memory to compile it",
        expected="free memory for the model's operations",
    )


def not_utf8(subject: str, error: UnicodeDecodeError) -> ErrorInfo:
    """Return the fault for an IR with names that are not UTF-8."""
    return ErrorInfo(
        result=int(ZeResult.ERROR_UNSUPPORTED_FEATURE),
        object=f"{subject}, IR",
        found=f"the name {shortened(repr(error.object), 100)}",
        expected="names in UTF-8",
    )


def system_error(subject: str, error: OSError) -> ErrorInfo:
    """Return the fault for a failed system call: out of memory, or else a failed build."""
    result, expected = ZeResult.ERROR_MODULE_BUILD_FAILURE, "files that can be read and mapped"
    if error.errno in _NO_SPACE:
        result, expected = ZeResult.ERROR_OUT_OF_HOST_MEMORY, "free memory"
        if error.errno == errno.ENOSPC:  # of a memory file, or of the file that a blob is exported to
            expected += ", and room in the file system of the output"
    elif error.errno == errno.ETOOMANYREFS:
        expected = "fewer descriptors in messages that this user's programs have not read"
    return ErrorInfo(
        result=int(result), object=subject, found=error.strerror or str(error), expected=expected
    )
