"""Errors of the plugin. All are `RuntimeError`, as programs written for OpenVINO expect.

An error that began in the driver has the driver's `ZeError`, with its Level Zero result, as `__cause__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from softnpu.driver import ZeError, ZeResult


class NpuError(RuntimeError):
    """Base of all errors of the plugin: what was asked, what was found, the next step."""


class ModelError(NpuError):
    """A model cannot be read."""


class CompileError(NpuError):
    """A model cannot be compiled or loaded."""


class BlobError(ModelError):
    """An exported model cannot be used: it is none, it is damaged, or it does not fit device or weights."""


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
def translated(asked: str, kind: type[NpuError]) -> Iterator[None]:
    """Turns a `ZeError` of the block into `kind`; a lost device and a bad property have their own kinds."""
    try:
        yield
    except ZeError as failure:
        chosen = kind
        if failure.result == ZeResult.ERROR_DEVICE_LOST:
            chosen = DeviceLostError
        elif ", property " in failure.info.object:
            chosen = PropertyError
        raise chosen(f"{asked}: {failure.info} [{failure.info.name}]") from failure
