"""Errors of the plugin. All are `RuntimeError`, as programs written for OpenVINO expect.

An error raised by the driver is the `__cause__`: a `ZeError` with its Level Zero result.
"""

from __future__ import annotations

from types import TracebackType

from softnpu.driver import ZeError, ZeResult


class NpuError(RuntimeError):
    """Base of all errors of the plugin.

    The text states object, value, what was expected, and the next step.
    """


class ModelError(NpuError):
    """A model cannot be read."""


class ModelTypeError(ModelError, TypeError):
    """What should be a model is neither a path, nor a stream, nor a text."""


class CompileError(NpuError):
    """A model cannot be compiled or loaded."""


class BlobError(ModelError):
    """A file is not an exported model, is damaged, or does not fit the device or the weights."""


class PropertyError(NpuError):
    """A property is unknown, or its value is not allowed."""


class InputError(NpuError):
    """A tensor does not fit its port, or there is no such port."""


class InputTypeError(InputError, TypeError):
    """A value is no tensor, array or number, or a key is neither a port, a name nor an index."""


class InferError(NpuError):
    """An inference failed."""


class InferCancelled(InferError):
    """An inference was cancelled."""


class DeviceLostError(NpuError):
    """The daemon is gone, or the device gave up on this model's work."""


class translated:
    """Translates a `ZeError` into `kind`, or into the class for a lost device or a rejected property."""

    # not a generator: every inference enters it twice
    __slots__ = ("_kind", "_subject")

    def __init__(self, subject: str, kind: type[NpuError]) -> None:
        self._subject = subject
        self._kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(failure, ZeError):
            return
        chosen = self._kind
        if failure.result == ZeResult.ERROR_DEVICE_LOST:
            chosen = DeviceLostError
        elif failure.info.property:
            chosen = PropertyError
        raise chosen(f"{self._subject}: {failure.info} [{failure.info.name}]") from failure
