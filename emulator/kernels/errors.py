"""Failures of kernels: what is wrong, with which kernel, and where."""

from __future__ import annotations

import enum

from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult


class Failure(enum.StrEnum):
    """What a kernel did that ended its run, or what its module lacks."""

    MODULE = "module"  # damaged, too large, wrong imports or exports, a wrong description
    SHAPE = "shape"  # shapes, types or attributes that it cannot have, or wrong ones from it
    RETURNED = "returned"  # it said itself that it cannot
    BOUNDS = "bounds"  # an access outside of its memory, or a write to an input
    STACK = "stack"
    DEADLINE = "deadline"
    MEMORY = "memory"  # more than it may have
    TRAP = "trap"  # any other trap: unreachable, a division by zero, ...
    RAISED = "raised"  # an exception of a Python function
    LOST = "lost"  # its process ended


class KernelError(Refused):
    """A kernel was refused, or its run failed."""

    def __init__(self, failure: Failure, info: ErrorInfo) -> None:
        super().__init__(info)
        self.failure = failure


def failed(failure: Failure, name: str, found: str, expected: str = "", hint: str = "") -> KernelError:
    """Build the error of a kernel; the caller raises it."""
    result = ZeResult.ERROR_INVALID_NATIVE_BINARY if failure is Failure.MODULE else ZeResult.ERROR_UNKNOWN
    subject = f"kernel {name}" if name else "kernel"
    info = ErrorInfo(result=int(result), object=subject, found=found, expected=expected, hint=hint)
    return KernelError(failure, info)
