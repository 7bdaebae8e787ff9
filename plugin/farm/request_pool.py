"""A model on the devices of a process: batch rows as inferences, several of them in flight."""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from softnpu.farm.batching import Array, BatchRules, Rows

if TYPE_CHECKING:
    from softnpu.plugin import CompiledModel


class RequestPool:
    """A model on one or more devices, with infer requests that are idle or in flight.

    `requests`: per device; 0: the model's optimal number.
    """

    def __init__(self, name: str, compiled: Sequence[CompiledModel], requests: int = 0) -> None:
        self.rules = BatchRules(name, compiled[0].inputs, compiled[0].outputs)
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        each = requests or int(compiled[0].get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        for _ in range(each):
            for one in compiled:
                self._free.put(one.create_infer_request())

    def infer(self, rows: Rows, count: int) -> Rows:
        """Return the outputs of these rows."""
        flight: deque[tuple[slice, Any]] = deque()
        results = self.rules.empty() if not count else {}
        try:
            for part in self.rules.parts(count):
                request = self._take(flight, results, count)
                try:
                    self._start(request, rows, part)
                except BaseException:
                    self._free.put(request)
                    raise
                flight.append((part, request))
            while flight:
                self._collect(flight, results, count)
        finally:
            self._abandon(flight)
        return results

    def _abandon(self, flight: deque[tuple[slice, Any]]) -> None:
        """After a failure: drain the inferences in flight, so that the next batch has all requests again."""
        for _, request in flight:
            with contextlib.suppress(RuntimeError):  # it has failed too, and one failure is reported
                request.wait()
            self._free.put(request)

    def _take(self, flight: deque[tuple[slice, Any]], results: Rows, count: int) -> Any:
        """Return an idle request; if there is none, the oldest of this call ends first."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            if flight:
                self._collect(flight, results, count)
        return self._free.get()

    def _start(self, request: Any, rows: Rows, part: slice) -> None:
        for index, tensor in enumerate(self.rules.inputs):
            given = rows[tensor.name][part]
            if self.rules.size:
                self.rules.fill(request.get_input_tensor(index).data, given)
            else:
                target = request.get_input_tensor(index)
                target.shape = given.shape
                target.data[:] = given
        request.start_async()

    def _collect(self, flight: deque[tuple[slice, Any]], results: Rows, count: int) -> None:
        """Wait for the oldest inference, and add its rows to the results."""
        part, request = flight[0]
        request.wait()
        for index, tensor in enumerate(self.rules.outputs):
            data: Array = request.get_output_tensor(index).data
            if tensor.name not in results:
                results[tensor.name] = np.empty((count, *data.shape[1:]), data.dtype)
            results[tensor.name][part] = data[: part.stop - part.start]
        flight.popleft()
        self._free.put(request)
