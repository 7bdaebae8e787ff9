"""A kernel that is a Python function, on mapped tensors: inputs for reading, outputs to be filled."""

from __future__ import annotations

import faulthandler
import inspect
import mmap
import os
import signal
import sys
import traceback
from types import FrameType, TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.emulator.kernels import abi, patterns
from softnpu.emulator.kernels.abi import TensorRecord
from softnpu.emulator.kernels.description import OUT, Function, FunctionDescription, Value
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.numpy_types import TYPES
from softnpu.emulator.kernels.serving import Ran, Tensor
from softnpu.emulator.links import kernels as link

Array = npt.NDArray[Any]
_HARD_S: Final = 0.5
_STDERR: Final = 2
_MOST_MESSAGE, _MOST_FRAMES = 100, 3
_PAGE: Final = mmap.PAGESIZE


class FunctionKernel:
    """A function, for the server."""

    is_from_cache = False

    def __init__(self, function: Function, described: FunctionDescription) -> None:
        self.function, self.described = function, described

    def shapes(self, request: link.AskShapes) -> tuple[list[TensorRecord], int]:
        """Return the outputs by the signature."""
        shapes = [each.shape for each in request.inputs]
        return outputs(self.described, request.implementation, shapes, request.attributes), 0

    def prepare(self, request: link.PrepareCall, inputs: list[Tensor], outputs: list[Tensor]) -> FunctionCall:
        """Bind a call."""
        for name, (given, _), wanted in zip(
            self.described.outputs, outputs, self.shapes(request)[0], strict=True
        ):
            if given[:2] != wanted[:2]:
                found = f"output {name}: {given.type} {list(given.shape)}"
                raise failed(
                    Failure.SHAPE, self.described.full_name, found, f"{wanted.type} {list(wanted.shape)}"
                )
        return FunctionCall(self, request.attributes, inputs, outputs, request.deadline_ms)


def outputs(
    described: FunctionDescription, number: int, inputs: list[tuple[int, ...]], values: list[Value]
) -> list[TensorRecord]:
    """Return types and shapes of the outputs of an implementation."""
    shapes = patterns.output_shapes(described, number, inputs, values)
    kinds = described.implementations[number].outputs
    return [TensorRecord(kind, shape) for kind, shape in zip(kinds, shapes, strict=True)]


class FunctionCall:
    """A function with its arguments."""

    parts = 1

    def __init__(
        self,
        kernel: FunctionKernel,
        attributes: list[Value],
        inputs: list[Tensor],
        outputs: list[Tensor],
        deadline_ms: int,
    ) -> None:
        self._function, self._described = kernel.function, kernel.described
        names = (each.name for each in kernel.described.attributes)
        self._keywords: dict[str, Any] = dict(zip(names, attributes, strict=True))
        self._inputs = [_array(each, writable=False) for each in inputs]
        self._outputs = [_array(each, writable=True) for each in outputs]
        self._deadline_ms = deadline_ms
        self.staged = sum(each.nbytes for each in self._outputs)
        if OUT in inspect.signature(self._function).parameters:
            self._keywords[OUT] = self._outputs[0] if len(outputs) == 1 else tuple(self._outputs)
            self.staged = 0

    def run(self) -> Ran:
        """Run it once."""
        try:
            with _Deadline(self._deadline_ms):
                staged = self._take(self._function(*self._inputs, **self._keywords))
        except KernelError:
            raise
        except _DeadlineReached as reached:
            place = _place(reached.__traceback__)
            found, expected = (
                f"still running at its deadline, {place}",
                f"an end within {self._deadline_ms} ms",
            )
            raise self._failed(Failure.DEADLINE, found, expected) from None
        except BaseException as error:  # noqa: BLE001 - also an exit ends this run alone
            traceback.print_exc()  # whole, where the program prints; the error has little room
            reason = "".join(traceback.format_exception_only(error)).strip()[:_MOST_MESSAGE]
            raise self._failed(Failure.RAISED, f"{reason}, {_place(error.__traceback__)}") from None
        finally:
            faulthandler.cancel_dump_traceback_later()  # the alarm may have come while that was done
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        return Ran(None, staged)

    def _take(self, given: object) -> int:
        """Copy what the function returned to where it has to be; return the bytes."""
        if given is None and OUT in self._keywords:
            return 0
        results = given if isinstance(given, tuple | list) else (given,)
        if len(results) != len(self._outputs):
            raise self._failed(Failure.SHAPE, f"{len(results)} results", f"{len(self._outputs)}")
        staged = 0
        for name, result, output in zip(self._described.outputs, results, self._outputs, strict=True):
            if result is output:
                continue
            array = np.asarray(result)
            if array.shape != output.shape or not np.can_cast(array.dtype, output.dtype, "same_kind"):
                found = f"result {name}: {array.dtype} {list(array.shape)}"
                raise self._failed(Failure.SHAPE, found, f"{output.dtype} {list(output.shape)}")
            np.copyto(output, array, "same_kind")
            staged += output.nbytes
        return staged

    def _failed(self, failure: Failure, found: str, expected: str = "") -> KernelError:
        return failed(failure, self._described.full_name, found, expected)


def _array(tensor: Tensor, *, writable: bool) -> Array:
    record, place = tensor
    size = abi.byte_size(record.type, record.shape)
    kind = np.dtype(TYPES[record.type])
    if not size:
        return np.empty(record.shape, kind)
    start = place.offset // _PAGE * _PAGE
    # more than the mapping would be a SIGBUS at its use
    if os.fstat(place.fd).st_size < place.offset + size:
        raise OSError(f"a tensor of {size} bytes at {place.offset}, behind the end of its memory")
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapping = mmap.mmap(place.fd, place.offset - start + size, mmap.MAP_SHARED, access, offset=start)
    count = size // kind.itemsize
    return np.frombuffer(mapping, kind, count, place.offset - start).reshape(record.shape)


# ---------------------------------------------------------------- deadlines


class _DeadlineReached(BaseException):
    """The deadline of a run; no `Exception`, which the function might handle."""


class _Deadline:
    """A stretch that is interrupted at its deadline; what cannot be, ends its process half a second later."""

    _is_running = False

    def __init__(self, deadline_ms: int) -> None:
        self._deadline_s = deadline_ms / 1e3
        signal.signal(signal.SIGALRM, self._reached)

    def __enter__(self) -> None:
        self._is_running = True
        faulthandler.dump_traceback_later(self._deadline_s + _HARD_S, exit=True, file=_STDERR)
        signal.setitimer(signal.ITIMER_REAL, self._deadline_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()

    def _reached(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_running:
            raise _DeadlineReached


def _place(trace: TracebackType | None) -> str:
    """Return where it happened in the function, the innermost frame first."""
    frames = [each for each in traceback.extract_tb(trace) if each.filename != __file__]
    places = [f"{os.path.basename(each.filename)}:{each.lineno} in {each.name}" for each in frames[::-1]]
    return f"at {', called at '.join(places[:_MOST_FRAMES])}" if places else "before its first line"
