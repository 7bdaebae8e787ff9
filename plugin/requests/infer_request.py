"""`openvino.InferRequest` for the emulated NPU."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov

from softnpu.driver import Fence
from softnpu.driver.waiting import FOREVER
from softnpu.plugin.errors import InferCancelled, InferError, NpuError, translated
from softnpu.plugin.given_inputs import by_key
from softnpu.plugin.ports import described
from softnpu.plugin.requests.dynamic import recording_for
from softnpu.plugin.requests.executable import Executable
from softnpu.plugin.requests.request_tensors import RequestTensors
from softnpu.plugin.requests.results import Results
from softnpu.plugin.requests.states import VariableState

log = logging.getLogger(__name__)

Callback = Callable[[Any], None]
_NO_CALLBACK = threading.Event()
_NO_CALLBACK.set()


class InferRequest(RequestTensors):
    """One inference at a time. Its tensors lie in device memory: writing into them copies nothing."""

    userdata: Any = None
    """The last `userdata` of `set_callback` or `start_async`."""

    def __init__(self, executable: Executable, model: Callable[[], Any]) -> None:
        self._model = model
        self._executable = executable
        self._name = executable.meta.name
        self._inputs = executable.inputs
        self._outputs = executable.outputs
        self._shapes_are_fixed = all(spec.partial_shape.is_static for spec in executable.outputs.specs)
        self._recording = recording_for(executable)
        self._fence: Fence | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._running = False  # busy, and on the device
        self._cancelled = False
        self._attempts = 0
        self._failure: NpuError | None = None
        self._callback: Callback | None = None
        self._callback_failure: InferError | None = None
        self._called_back = _NO_CALLBACK
        self._started_ns = 0
        self._ended_ns = 0

    # ------------------------------------------------------------ states

    def query_state(self) -> list[VariableState]:
        """Return the states of this request, ordered by name."""
        states = self._recording.states
        return [VariableState(states, name, self._change_states) for name in states.by_name]

    def reset_state(self) -> None:
        """Reset all states to their initial values. Raises `InferError` while the request is busy."""
        self._change_states("reset_state", self._recording.states.reset)

    # ------------------------------------------------------------ inference

    def get_compiled_model(self) -> Any:
        """Return the `CompiledModel` that the request runs."""
        return self._model()

    def infer(
        self,
        inputs: Any = None,
        share_inputs: bool = False,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
    ) -> Results:
        """Run one inference and return its results, copied unless `share_outputs`. No callback is called.

        `inputs`: a mapping of ports, names or indices to arrays or tensors, a sequence in input order, other
        results, or one array; other inputs keep their tensors. With `share_inputs`, arrays become the
        request's tensors: a later inference without inputs reads their content at that time.
        `decode_strings` is OpenVINO's and has no effect.
        Raises `InputError`, `InferError`, `DeviceLostError`.
        """
        del decode_strings
        self._begin(inputs, share_inputs, None)
        self.wait()
        tensors = self.output_tensors
        if share_outputs and self._shapes_are_fixed:
            return Results.shared(self._outputs, tensors)
        arrays = [tensor.data for tensor in tensors]
        return Results(self._outputs, arrays if share_outputs else [array.copy() for array in arrays])

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Start one inference; `wait` or the callback reports its end. Otherwise like `infer`."""
        self._begin(inputs, share_inputs, self._callback, userdata)

    def _begin(self, inputs: Any, share: bool, callback: Callback | None, userdata: Any = None) -> None:
        begun = False
        try:  # a signal handler may raise at any call, also at the end of a lock
            with self._lock:
                if self._busy:
                    raise InferError(
                        f"model '{self._name}', start_async: the request is busy; expected an idle one. "
                        "Wait for it, or use another request"
                    )
                self._busy = begun = True
                self._cancelled = False
                self._failure = self._callback_failure = None
            if userdata is not None:
                self.userdata = userdata
            if inputs is not None:
                self._set_inputs(inputs, share)
            # a new event each time: a callback that starts the next inference must not end the wait for that
            # one
            called_back = self._called_back = _NO_CALLBACK if callback is None else threading.Event()
            with translated(f"model '{self._name}', inference", InferError):
                self._submit()
        except BaseException:
            if begun:
                self._busy = False
            raise
        if callback is not None:
            self._executable.completions.submit(partial(self._complete, callback, called_back))

    def wait(self) -> None:
        """Wait until the inference has ended and its callback has returned.

        Raises `InferError` with the reason of a failure or with what the callback raised, `InferCancelled`,
        `DeviceLostError`; again in every call until the next inference starts.
        """
        self._wait(FOREVER)

    def wait_for(self, timeout: int) -> bool:
        """Wait at most `timeout` milliseconds; return whether an inference has ended. Raises as `wait`."""
        if timeout < 0:
            raise InferError(f"model '{self._name}', wait_for: timeout {timeout}; expected 0 ms or more")
        return self._wait(timeout * 1_000_000) and self._started_ns > 0

    def cancel(self) -> None:
        """Cancel the inference, before it starts or while it runs. Its results are undefined.

        `wait` then raises `InferCancelled`. An idle request stays idle.
        """
        with self._lock:
            if self._busy and self._fence is not None:
                self._cancelled = True
                self._fence.cancel()

    def set_callback(self, callback: Callback, userdata: Any = None) -> None:
        """Call `callback(userdata)` in a thread of the plugin when an inference has ended."""
        self._check_idle("set_callback")
        self._callback = callback
        self.userdata = userdata

    @property
    def results(self) -> Results:
        """The outputs of the last inference, as views of device memory."""
        return Results(self._outputs, [tensor.data for tensor in self.output_tensors])

    @property
    def failure(self) -> NpuError | None:
        """The error of the last inference; None after success."""
        return self._failure

    @property
    def latency(self) -> float:
        """Duration of the last inference in milliseconds, from `start_async` until its end was observed."""
        return (self._ended_ns - self._started_ns) / 1e6

    def get_profiling_info(self) -> list[ov.ProfilingInfo]:
        """Return the time of the last inference in each layer.

        Raises `InferError` unless the model was compiled with PERF_COUNT and an inference has ended.
        """
        profiler = self._recording.profiler
        if profiler is None:
            raise InferError(
                f"model '{self._name}', profiling: compiled without PERF_COUNT; expected PERF_COUNT=YES"
            )
        with translated(f"model '{self._name}', profiling", InferError):
            return profiler.info()

    @property
    def profiling_info(self) -> list[ov.ProfilingInfo]:
        """`get_profiling_info()`."""
        return self.get_profiling_info()

    # ------------------------------------------------------------

    def __repr__(self) -> str:
        return described("InferRequest", self._inputs, self._outputs)

    def _set_inputs(self, inputs: Any, share: bool) -> None:
        """Check all inputs, then set them: an invalid one changes nothing."""
        slots = self._recording.inputs
        pairs = by_key(inputs, self._inputs, slots[0].accepts if len(slots) == 1 else None)
        by_index = {self._inputs.find(key): value for key, value in pairs}
        values = {index: slots[index].checked(value) for index, value in by_index.items()}
        self._recording.check_inputs(values)
        for index, value in values.items():
            slot = slots[index]
            if isinstance(value, ov.Tensor):
                slot.set(value)
            else:
                self._executable.count_staged(slot.share(value) if share else slot.fill(value))

    def _submit(self) -> None:
        queue = self._executable.queue()
        if self._fence is None or self._fence.queue is not queue:
            self._fence = queue.create_fence()
        commands = self._recording.prepare()
        with self._lock:  # a wait for the previous inference must not mistake its end for this one's
            self._attempts += 1
            self._started_ns = time.monotonic_ns()
            queue.execute_command_lists([commands], self._fence)
            self._running = True

    def _wait(self, timeout_ns: int) -> bool:
        end = time.monotonic_ns() + timeout_ns
        settled = self._settle(timeout_ns)
        while settled is None:
            settled = self._settle(FOREVER if timeout_ns == FOREVER else max(0, end - time.monotonic_ns()))
        if not settled:
            return False
        if not self._called_back.is_set():
            left = None if timeout_ns == FOREVER else max(0, end - time.monotonic_ns()) / 1e9
            if not self._called_back.wait(left):
                return False
        failure = self._failure or self._callback_failure
        if failure is not None:
            raise failure
        return True

    def _settle(self, timeout_ns: int) -> bool | None:
        """Wait for the device and take over its results; return False after the timeout.

        None: the device executes a retry or the next inference, so the caller must wait again.
        """
        with self._lock:
            running, fence, attempt = self._running, self._fence, self._attempts
        if not running or fence is None:
            return True
        failure: NpuError | None = None
        try:
            with translated(f"model '{self._name}', inference", InferError):
                if not fence.host_synchronize(timeout_ns):
                    # a fence that was reset meanwhile no longer shows the end of the first attempt
                    return False if self._attempts == attempt else None
        except NpuError as error:
            failure = error
        with self._lock:
            if self._running:
                if self._attempts != attempt:
                    return None
                self._ended_ns = time.monotonic_ns()
                if self._cancelled:
                    failure = InferCancelled(f"model '{self._name}', inference: cancelled")
                try:
                    if failure is None:
                        self._recording.finish()
                    elif self._retry(fence, failure):
                        failure = None  # its traceback refers to this frame and would keep the request alive
                        return None
                except NpuError as error:
                    failure = error
                if failure is not None:
                    self._recording.fail()
                self._failure = failure
                self._running = self._busy = False
        return True

    def _retry(self, fence: Fence, failure: NpuError) -> bool:
        """Execute again if the recording can repair the failure."""
        with translated(f"model '{self._name}', inference", InferError):
            commands = self._recording.retry(failure)
            if commands is None or fence.queue.lost:
                return False
            self._attempts += 1
            fence.queue.execute_command_lists([commands], fence)
        return True

    def _complete(self, callback: Callback, called_back: threading.Event) -> None:
        """Wait for the end, then call back. Runs in the callback thread."""
        try:
            while self._settle(FOREVER) is None:
                pass
            callback(self.userdata)
        except BaseException as error:  # noqa: BLE001 - code of the user in a thread of ours
            # as text, because a traceback would keep the request alive
            reason = traceback.format_exception_only(error)[-1].strip()
            subject = f"model '{self._name}': the callback raised"
            log.error("%s\n%s", subject, traceback.format_exc())
            if called_back is self._called_back:  # it may have started the next inference
                self._callback_failure = InferError(f"{subject} {reason}")
                self._callback_failure.__cause__ = error.with_traceback(None)
        finally:
            called_back.set()

    def _change_states(self, call: str, change: Callable[[], int]) -> None:
        self._check_idle(call)
        with translated(f"model '{self._name}', {call}", InferError):
            copied = change()
        if copied:
            self._executable.count_staged(copied)

    def _check_idle(self, call: str) -> None:
        if self._busy:
            raise InferError(
                f"model '{self._name}', {call}: the request is busy; expected an idle one. Wait for it first"
            )
