"""Calls of kernels that can be split: cut along their outer axis into parts, which run in several threads.

The parts follow from the tensors alone and compute the same in any order, so the bits do not depend on the
number of threads. Every part begins on a page, so that nothing more is copied.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, NamedTuple

from softnpu.emulator.kernels import abi
from softnpu.emulator.kernels.errors import Failure, failed
from softnpu.emulator.kernels.instance import Instance
from softnpu.emulator.kernels.linear_memory import PAGE
from softnpu.emulator.kernels.module import SPLIT, KernelModule
from softnpu.emulator.kernels.prepared import PreparedCall
from softnpu.emulator.kernels.serving import Place, Ran, Tensor
from softnpu.emulator.links import kernels as link

MOST_PARTS: Final = 8
_LEAST_BYTES: Final = 128 << 10
"""Of the tensors of a part: to wake a thread takes as long as some ten KiB."""


class Part(NamedTuple):
    """The tensors of a part."""

    inputs: list[Tensor]
    outputs: list[Tensor]


class Threads:
    """Threads that run parts, beside the one that asks; they start when they are first needed."""

    def __init__(self, count: int = 0) -> None:
        """`count` with the one that asks; 0: one for each core of this process."""
        self.count = min(count or len(os.sched_getaffinity(0)), MOST_PARTS)
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._started = 1

    def run(self, parts: Sequence[Callable[[], Ran]]) -> list[Ran]:
        """Run all; raise what the first one of them raised, if any did."""
        left = deque(enumerate(parts))
        results: dict[int, Ran] = {}
        errors: dict[int, Exception] = {}

        def take() -> None:
            while left:
                try:
                    number, part = left.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    results[number] = part()
                except Exception as error:  # noqa: BLE001 - raised below
                    errors[number] = error

        others = min(self.count, len(parts)) - 1
        for _ in range(others):
            self._work.put(take)
        self._start(others + 1)
        take()
        for _ in range(others):
            self._done.get()
        if errors:
            first = errors[min(errors)]
            errors.clear()
            try:
                raise first
            finally:
                del first  # its traceback has this frame, which would keep the instances until a collection
        return [results[number] for number in range(len(parts))]

    def _start(self, count: int) -> None:
        while self._started < count:
            threading.Thread(target=self._serve, name="parts", daemon=True).start()
            self._started += 1

    def _serve(self) -> None:
        while True:
            take = self._work.get()
            try:
                take()
            finally:
                del take  # it keeps the parts, and would until the next call
                self._done.put(None)


class SplitCall:
    """A call in parts."""

    def __init__(self, calls: list[PreparedCall], deadline_ms: int, threads: Threads) -> None:
        self._calls, self._deadline_ms, self._threads = calls, deadline_ms, threads
        self.parts = len(calls)
        self.staged = sum(each.staged for each in calls)

    def run(self) -> Ran:
        """Run all parts within the deadline."""
        end = time.monotonic() + self._deadline_ms / 1e3

        def within(call: PreparedCall) -> Callable[[], Ran]:
            return lambda: call.run(max(1, int((end - time.monotonic()) * 1e3)))

        ran = self._threads.run([within(each) for each in self._calls])
        return Ran(None, sum(each.staged for each in ran))


def prepare(
    module: KernelModule,
    request: link.PrepareCall,
    inputs: list[Tensor],
    outputs: list[Tensor],
    threads: Threads,
) -> PreparedCall | SplitCall:
    """Bind a call to its tensors, in parts if the kernel can be split and they are large enough."""
    parts = _parts(module, request, inputs, outputs) if module.can_split else []
    if len(parts) < 2:
        parts = [Part(inputs, outputs)]
    deadline_ms = request.deadline_ms
    calls = [
        PreparedCall(module, request.implementation, request.attributes, *part, deadline_ms) for part in parts
    ]
    return calls[0] if len(calls) == 1 else SplitCall(calls, deadline_ms, threads)


def _parts(
    module: KernelModule, request: link.PrepareCall, inputs: list[Tensor], outputs: list[Tensor]
) -> list[Part]:
    """Ask the kernel, and cut the tensors; no parts if it says no, or they are too small."""
    total = sum(abi.byte_size(record.type, record.shape) for record, _ in (*inputs, *outputs))
    if total < 2 * _LEAST_BYTES:
        return []
    name = module.description.full_name
    given, wanted = ([record for record, _ in side] for side in (inputs, outputs))
    chosen = Instance(module, request.deadline_ms).split(given, wanted, request.attributes)
    if not chosen:
        return []
    if chosen >> len(inputs):
        found = f"{SPLIT} returned {chosen:#x}"
        raise failed(Failure.SHAPE, name, found, f"bits of its {len(inputs)} inputs")
    cut = [(chosen >> number & 1) > 0 for number in range(len(inputs))] + [True] * len(outputs)
    tensors = [*inputs, *outputs]
    axis = outer_axis(outputs[0][0].shape)
    rows = outputs[0][0].shape[axis] if axis >= 0 else 0
    if rows < 2:
        return []
    unit = 1
    for (record, place), is_cut in zip(tensors, cut, strict=True):
        if not is_cut:
            continue
        if outer_axis(record.shape) != axis or record.shape[axis] != rows:
            found = f"{SPLIT} cuts a tensor {list(record.shape)}"
            raise failed(Failure.SHAPE, name, found, f"{rows} rows along dimension {axis}, as output 0 has")
        if place.offset % PAGE:
            return []
        unit = math.lcm(unit, PAGE // math.gcd(PAGE, abi.byte_size(record.type, record.shape) // rows))
    units = rows // unit
    count = min(MOST_PARTS, units, total // _LEAST_BYTES)
    ends = [unit * (units * number // count) for number in range(count)] + [rows] if count else []
    return [
        Part(part[: len(inputs)], part[len(inputs) :])
        for begin, end in itertools.pairwise(ends)
        for part in [
            [
                _cut(each, axis, begin, end) if is_cut else each
                for each, is_cut in zip(tensors, cut, strict=True)
            ]
        ]
    ]


def _cut(tensor: Tensor, axis: int, begin: int, end: int) -> Tensor:
    record, place = tensor
    shape = record.shape
    row = abi.byte_size(record.type, shape) // shape[axis]
    part = (*shape[:axis], end - begin, *shape[axis + 1 :])
    return record._replace(shape=part), Place(place.fd, place.offset + begin * row)


def outer_axis(shape: Sequence[int]) -> int:
    """Return the first dimension that is not 1; -1 if there is none."""
    return next((axis for axis, extent in enumerate(shape) if extent != 1), -1)
