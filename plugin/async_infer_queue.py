"""`openvino.AsyncInferQueue` for the emulated NPU: a pool of requests that run in parallel."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.errors import InputError, PropertyError
from softnpu.plugin.requests.infer_request import InferRequest

_DEFAULT_JOBS = 4


class AsyncInferQueue:
    """`jobs` requests of a model; 0 creates OPTIMAL_NUMBER_OF_INFER_REQUESTS of them."""

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
            request.set_callback(partial(self._complete, index))

    def set_callback(self, callback: Callable[[InferRequest, Any], None]) -> None:
        """Call `callback(request, userdata)` whenever an inference ends."""
        self._callback = callback

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Start an inference on the first idle request, after waiting for one.

        Raises as `InferRequest.start_async`, and any exception of an earlier callback or inference.
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
        """Wait until every request is idle. Raises the first failure since the last call."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._idle) == len(self._requests))
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def is_ready(self) -> bool:
        """Return whether a request is idle."""
        return bool(self._idle)

    def get_idle_request_id(self) -> int:
        """Wait for an idle request; return the index of the one that `start_async` uses next."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return self._idle[0]

    @property
    def userdata(self) -> list[Any]:
        """The `userdata` of the last `start_async` of each request."""
        return list(self._userdata)

    def __repr__(self) -> str:
        return f"<AsyncInferQueue: {len(self)} jobs>"

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def _complete(self, index: int, _userdata: Any) -> None:
        """Handle an ended inference, in the callback thread."""
        request = self._requests[index]
        try:
            failure = request.failure
            if failure is not None:
                self._record_failure(failure)
            elif self._callback is not None:
                self._callback(request, self._userdata[index])
        except BaseException as error:  # noqa: BLE001 - code of the user: `wait_all` raises its error
            self._record_failure(error)
        finally:
            self._free(index)

    def _record_failure(self, failure: BaseException) -> None:
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
