"""`openvino.InferRequest` for the emulated NPU."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import openvino as ov

from softnpu.driver import Fence
from softnpu.driver.waiting import FOREVER
from softnpu.plugin.errors import InferCancelled, InferError, InputError, NpuError, translated
from softnpu.plugin.ports import Port, PortKey, Ports
from softnpu.plugin.recording import Recording
from softnpu.plugin.results import Results
from softnpu.plugin.tensors import Slot

if TYPE_CHECKING:
    from softnpu.plugin.executable import Executable

log = logging.getLogger(__name__)

Callback = Callable[[Any], None]


class InferRequest:
    """One inference at a time. Its tensors lie in device memory: writing into them copies nothing."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._name = executable.meta.name
        self._inputs = executable.inputs
        self._outputs = executable.outputs
        self._recording = Recording(executable)
        self._fence: Fence | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._cancelled = False
        self._failure: NpuError | None = None
        self._callback: Callback | None = None
        self._called_back = threading.Event()
        self._started_ns = 0
        self._ended_ns = 0
        self.userdata: Any = None

    # ------------------------------------------------------------ tensors

    def get_tensor(self, key: PortKey) -> ov.Tensor:
        """The tensor of a port, by port or name. Its `data` is a view of device memory."""
        return self._slot(key).tensor

    def set_tensor(self, key: PortKey, tensor: ov.Tensor) -> None:
        """Uses `tensor` for a port from now on. Memory of this device is used in place, other is copied.

        Raises `InputError` for a wrong shape or element type.
        """
        self._check_idle("set_tensor")
        self._slot(key).set(tensor)

    def set_tensors(self, tensors: Mapping[PortKey, ov.Tensor]) -> None:
        """`set_tensor` for several ports."""
        for key, tensor in tensors.items():
            self.set_tensor(key, tensor)

    def get_input_tensor(self, index: int = 0) -> ov.Tensor:
        """The tensor of an input."""
        return self._recording.inputs[self._inputs.find(index)].tensor

    def get_output_tensor(self, index: int = 0) -> ov.Tensor:
        """The tensor of an output."""
        return self._recording.outputs[self._outputs.find(index)].tensor

    def set_input_tensor(self, index: int, tensor: ov.Tensor) -> None:
        """As `set_tensor`, for an input by its index."""
        self.set_tensor(self._inputs[self._inputs.find(index)], tensor)

    def set_output_tensor(self, index: int, tensor: ov.Tensor) -> None:
        """As `set_tensor`, for an output by its index."""
        self.set_tensor(self._outputs[self._outputs.find(index)], tensor)

    @property
    def input_tensors(self) -> list[ov.Tensor]:
        """The tensors of all inputs."""
        return [slot.tensor for slot in self._recording.inputs]

    @property
    def output_tensors(self) -> list[ov.Tensor]:
        """The tensors of all outputs."""
        return [slot.tensor for slot in self._recording.outputs]

    @property
    def model_inputs(self) -> list[Port]:
        """The input ports of the model."""
        return list(self._inputs)

    @property
    def model_outputs(self) -> list[Port]:
        """The output ports of the model."""
        return list(self._outputs)

    # ------------------------------------------------------------ inference

    def infer(self, inputs: Any = None, share_inputs: bool = False, share_outputs: bool = False) -> Results:
        """Runs one inference and returns its results, copied unless `share_outputs`.

        `inputs`: a mapping of ports, names or indices to arrays or tensors, a sequence in the order of
        the inputs, or one array. Raises `InputError`, `InferError`, `DeviceLostError`.
        """
        self.start_async(inputs, share_inputs=share_inputs)
        self.wait()
        arrays = [tensor.data for tensor in self.output_tensors]
        return Results(self._outputs, arrays if share_outputs else [array.copy() for array in arrays])

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Starts one inference; `wait` or the callback tell when it has ended. Otherwise as `infer`."""
        del share_inputs  # an array in device memory is used where it is, any other has to be copied
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
                self._take_inputs(inputs)
            # a new one each time: a callback that starts the next inference must not end the wait for that
            called_back = self._called_back = threading.Event()
            with translated(f"model '{self._name}', inference", InferError):
                self._submit()
        except BaseException:
            self._busy = False
            raise
        if self._callback is not None:
            self._executable.completions.expect(partial(self._complete, called_back))

    def wait(self) -> None:
        """Waits until the inference has ended and its callback has returned.

        Raises `InferError` with the reason of a failure, `InferCancelled`, `DeviceLostError`.
        """
        self._wait(FOREVER)

    def wait_for(self, timeout_ms: int) -> bool:
        """Waits at most `timeout_ms` milliseconds; whether the inference has ended. Raises as `wait`."""
        return self._wait(max(0, timeout_ms) * 1_000_000)

    def cancel(self) -> None:
        """Gives an inference up: it is not begun any more, or ends early. Its results are void.

        `wait` raises `InferCancelled` then. Nothing happens when the request is idle.
        """
        with self._lock:
            if self._busy and self._fence is not None:
                self._cancelled = True
                self._fence.cancel()

    def set_callback(self, callback: Callback, userdata: Any = None) -> None:
        """Calls `callback(userdata)` in a thread of the plugin when an inference has ended."""
        self._check_idle("set_callback")
        self._callback = callback
        self.userdata = userdata

    @property
    def results(self) -> Results:
        """The outputs of the last inference, as views of device memory."""
        return Results(self._outputs, [tensor.data for tensor in self.output_tensors])

    @property
    def failure(self) -> NpuError | None:
        """Why the last inference failed; None if it did not."""
        return self._failure

    @property
    def latency(self) -> float:
        """Milliseconds that the last inference took, from `start_async` to the notice of its end."""
        return (self._ended_ns - self._started_ns) / 1e6

    def get_profiling_info(self) -> list[ov.ProfilingInfo]:
        """What the last inference spent in each layer.

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

    def _slot(self, key: PortKey) -> Slot:
        if not isinstance(key, int) and self._inputs.has(key):
            return self._recording.inputs[self._inputs.find(key)]
        if isinstance(key, int) or not self._outputs.has(key):
            names = [spec.name for spec in (*self._inputs.specs, *self._outputs.specs)]
            raise InputError(f"model '{self._name}': no port {key!r}; expected one of {', '.join(names)}")
        return self._recording.outputs[self._outputs.find(key)]

    def _take_inputs(self, inputs: Any) -> None:
        """Checks everything first, then takes it: nothing is changed when one input is wrong."""
        chosen = {self._inputs.find(key): value for key, value in _by_key(inputs, self._inputs, self._name)}
        slots = self._recording.inputs
        ready = {index: slots[index].checked(value) for index, value in chosen.items()}
        for index, value in ready.items():
            if isinstance(value, ov.Tensor):
                slots[index].set(value)
            else:
                self._executable.count_staged(slots[index].fill(value))

    def _submit(self) -> None:
        queue = self._executable.queue()
        if self._fence is None or self._fence.queue is not queue:
            self._fence = queue.create_fence()
        commands = self._recording.prepare()
        self._started_ns = time.monotonic_ns()
        queue.execute_command_lists([commands], self._fence)

    def _wait(self, timeout_ns: int) -> bool:
        end = time.monotonic_ns() + timeout_ns
        if not self._settle(timeout_ns):
            return False
        if self._callback is not None and self._started_ns:
            left = None if timeout_ns == FOREVER else max(0, end - time.monotonic_ns()) / 1e9
            if not self._called_back.is_set() and not self._called_back.wait(left):
                return False
        if self._failure is not None:
            raise self._failure
        return True

    def _settle(self, timeout_ns: int) -> bool:
        """Waits for the device and takes over what it has done; False when the time has passed."""
        fence = self._fence
        if not self._busy or fence is None:
            return True
        failure: NpuError | None = None
        try:
            with translated(f"model '{self._name}', inference", InferError):
                if not fence.host_synchronize(timeout_ns):
                    return False
        except NpuError as error:
            failure = error
        with self._lock:
            if self._busy:
                self._ended_ns = time.monotonic_ns()
                if self._cancelled:
                    failure = InferCancelled(f"model '{self._name}', inference: cancelled")
                if failure is None:
                    self._recording.finish()
                self._failure = failure
                self._busy = False
        return True

    def _complete(self, called_back: threading.Event) -> None:
        """In the thread of the callbacks: waits for the end, then calls back."""
        callback = self._callback
        try:
            self._settle(FOREVER)
            if callback is not None:
                callback(self.userdata)
        except Exception:  # noqa: BLE001 - code of the user, in a thread where nobody could catch it
            # as text: a record with the traceback itself would keep the request alive
            log.error("model '%s': the callback raised\n%s", self._name, traceback.format_exc())
        finally:
            called_back.set()

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
