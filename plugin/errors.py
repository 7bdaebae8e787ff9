"""Errors of the plugin. All are `RuntimeError`, as programs written for OpenVINO expect.

An error that began in the driver has the driver's `ZeError`, with its Level Zero result, as `__cause__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from softnpu.driver import ZeError, ZeResult


class NpuError(RuntimeError):
    """Base of all errors of the plugin.

    The text names object, value, what was expected, and the next step.
    """


class ModelError(NpuError):
    """A model cannot be read."""


class CompileError(NpuError):
    """A model cannot be compiled or loaded."""


class BlobError(ModelError):
    """A file is no exported model, is damaged, or does not fit the device or the weights."""


class PropertyError(NpuError):
    """A property is unknown, or its value is not allowed."""


class InputError(NpuError):
    """A tensor does not fit its port, or there is no such port."""


class InferError(NpuError):
    """An inference failed."""


class InferCancelled(InferError):
    """An inference was cancelled."""


class DeviceLostError(NpuError):
    """The daemon is gone, or the device gave up on the work of this model."""


@contextmanager
def translated(subject: str, kind: type[NpuError]) -> Iterator[None]:
    """Raise `kind` for a `ZeError` of the block, or the class for a lost device or a refused property."""
    try:
        yield
    except ZeError as failure:
        chosen = kind
        if failure.result == ZeResult.ERROR_DEVICE_LOST:
            chosen = DeviceLostError
        elif failure.info.property:
            chosen = PropertyError
        raise chosen(f"{subject}: {failure.info} [{failure.info.name}]") from failure
