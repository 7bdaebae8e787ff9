"""`openvino.InferRequest` for the emulated NPU."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import openvino as ov

from softnpu.driver import Fence
from softnpu.driver.waiting import FOREVER
from softnpu.plugin.errors import InferCancelled, InferError, InputError, NpuError, translated
from softnpu.plugin.ports import PortKey, Ports
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
        self._recording = recording_for(executable)
        self._fence: Fence | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._running = False  # busy, and on the device
        self._cancelled = False
        self._attempts = 0
        self._failure: NpuError | None = None
        self._callback: Callback | None = None
        self._called_back = threading.Event()
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
        """Run one inference and return its results, copied unless `share_outputs`.

        `inputs`: a mapping of ports, names or indices to arrays or tensors, a sequence in input order, or one
        array. With `share_inputs`, arrays become the request's tensors: a later inference without inputs
        reads their content at that time. `decode_strings` is OpenVINO's and has no effect.
        Raises `InputError`, `InferError`, `DeviceLostError`.
        """
        del decode_strings
        self.start_async(inputs, share_inputs=share_inputs)
        self.wait()
        arrays = [tensor.data for tensor in self.output_tensors]
        return Results(self._outputs, arrays if share_outputs else [array.copy() for array in arrays])

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Start one inference; `wait` or the callback reports its end. Otherwise like `infer`."""
        with self._lock:
            if self._busy:
                raise InferError(
                    f"model '{self._name}', start_async: the request is busy; expected an idle one. "
                    "Wait for it, or use another request"
                )
            self._busy = True
            self._cancelled = False
            self._failure = None
        try:
            if userdata is not None:
                self.userdata = userdata
            if inputs is not None:
                self._set_inputs(inputs, share_inputs)
            # a new event each time: a callback that starts the next inference must not end the wait for that
            # one
            called_back = self._called_back = _NO_CALLBACK if self._callback is None else threading.Event()
            with translated(f"model '{self._name}', inference", InferError):
                self._submit()
        except BaseException:
            self._busy = False
            raise
        if self._callback is not None:
            self._executable.completions.submit(partial(self._complete, called_back))

    def wait(self) -> None:
        """Wait until the inference has ended and its callback has returned.

        Raises `InferError` with the reason of a failure, `InferCancelled`, `DeviceLostError`.
        """
        self._wait(FOREVER)

    def wait_for(self, timeout: int) -> bool:
        """Wait at most `timeout` milliseconds; return whether the inference has ended. Raises as `wait`."""
        return self._wait(max(0, timeout) * 1_000_000)

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

    def _set_inputs(self, inputs: Any, share: bool) -> None:
        """Check all inputs, then set them: an invalid one changes nothing."""
        by_index = {self._inputs.find(key): value for key, value in _by_key(inputs, self._inputs, self._name)}
        slots = self._recording.inputs
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
        if self._callback is not None and self._started_ns:
            left = None if timeout_ns == FOREVER else max(0, end - time.monotonic_ns()) / 1e9
            if not self._called_back.is_set() and not self._called_back.wait(left):
                return False
        if self._failure is not None:
            raise self._failure
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

    def _complete(self, called_back: threading.Event) -> None:
        """Wait for the end, then call back. Runs in the callback thread."""
        callback = self._callback
        try:
            while self._settle(FOREVER) is None:
                pass
            if callback is not None:
                callback(self.userdata)
        except BaseException:  # noqa: BLE001 - code of the user in a thread of ours: SystemExit would end it
            # as text, because a traceback would keep the request alive
            log.error("model '%s': the callback raised\n%s", self._name, traceback.format_exc())
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


def _by_key(inputs: Any, ports: Ports, name: str) -> Sequence[tuple[PortKey, Any]]:
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    if isinstance(inputs, (list, tuple)):
        if len(inputs) != len(ports):
            raise InputError(f"model '{name}': {len(inputs)} inputs given; expected {len(ports)}")
        return list(enumerate(inputs))
    if len(ports) != 1:
        raise InputError(
            f"model '{name}': one array given; expected {len(ports)} inputs in a mapping or list"
        )
    return [(0, inputs)]
