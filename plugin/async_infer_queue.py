"""`openvino.AsyncInferQueue` for the emulated NPU: a pool of requests that work in parallel."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from softnpu.plugin.errors import InputError, PropertyError
from softnpu.plugin.infer_request import InferRequest

if TYPE_CHECKING:
    from softnpu.plugin.compiled_model import CompiledModel

_DEFAULT_JOBS = 4


class AsyncInferQueue:
    """`jobs` requests of a model; 0 takes as many as `OPTIMAL_NUMBER_OF_INFER_REQUESTS` says."""

    def __init__(self, model: CompiledModel, jobs: int = 0) -> None:
        if jobs < 0:
            raise InputError(
                f"AsyncInferQueue, jobs: {jobs}; expected a number of requests, or 0 for the best"
            )
        self._requests = [model.create_infer_request() for _ in range(jobs or _optimal(model))]
        self._changed = threading.Condition()
        self._idle = deque(range(len(self._requests)))
        self._callback: Callable[[InferRequest, Any], None] | None = None
        self._userdata: list[Any] = [None] * len(self._requests)
        self._failure: BaseException | None = None
        for index, request in enumerate(self._requests):
            request.set_callback(partial(self._ended, index))

    def set_callback(self, callback: Callable[[InferRequest, Any], None]) -> None:
        """Calls `callback(request, userdata)` whenever an inference has ended."""
        self._callback = callback

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Starts an inference with the first idle request; waits until one is idle.

        Raises as `InferRequest.start_async`, and what a callback or an inference has raised before.
        """
        with self._changed:
            index = self.get_idle_request_id()
            self._idle.popleft()
        self._userdata[index] = userdata
        try:
            self._requests[index].start_async(inputs, share_inputs=share_inputs)
        except BaseException:
            self._free(index)
            raise

    def wait_all(self) -> None:
        """Waits until every request is idle. Raises the first failure since the last call."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._idle) == len(self._requests))
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def is_ready(self) -> bool:
        """Whether a request is idle."""
        return bool(self._idle)

    def get_idle_request_id(self) -> int:
        """Index of the request that `start_async` takes next; waits until one is idle."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return self._idle[0]

    @property
    def userdata(self) -> list[Any]:
        """What `start_async` was given last for each request."""
        return list(self._userdata)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def _ended(self, index: int, _userdata: Any) -> None:
        """In the thread of the callbacks."""
        request = self._requests[index]
        try:
            failure = request.failure
            if failure is not None:
                self._note(failure)
            elif self._callback is not None:
                self._callback(request, self._userdata[index])
        except Exception as error:  # noqa: BLE001 - code of the user: its error belongs to `wait_all`
            self._note(error)
        finally:
            self._free(index)

    def _note(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or failure

    def _free(self, index: int) -> None:
        with self._changed:
            self._idle.append(index)
            self._changed.notify_all()


def _optimal(model: CompiledModel) -> int:
    try:
        return int(model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
    except PropertyError:
        return _DEFAULT_JOBS
