"""`openvino.InferRequest` for the emulated NPU."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import openvino as ov

from softnpu.driver import CommandList, Fence
from softnpu.driver.waiting import FOREVER
from softnpu.plugin.errors import InferError, InputError, translated
from softnpu.plugin.ports import PortKey, Ports
from softnpu.plugin.results import Results
from softnpu.plugin.tensors import Slot

if TYPE_CHECKING:
    from softnpu.plugin.executable import Executable


class InferRequest:
    """One inference at a time. Its tensors lie in device memory: writing into them copies nothing."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._name = executable.meta.name
        self._inputs = executable.inputs
        self._outputs = executable.outputs
        self._slots = [Slot(executable.context, meta) for meta in executable.meta.arguments]
        self._commands: CommandList | None = None
        self._fence: Fence | None = None
        self._lock = threading.Lock()
        self._busy = False

    # ------------------------------------------------------------ tensors

    def get_tensor(self, key: PortKey) -> ov.Tensor:
        """The tensor of a port, by port or name. Its `data` is a view of device memory."""
        return self._slot(key).tensor

    def set_tensor(self, key: PortKey, tensor: ov.Tensor) -> None:
        """Uses `tensor` for a port from now on. Memory of this device is used in place, other is copied.

        Raises `InputError` for a wrong shape or element type.
        """
        self._check_idle("set_tensor")
        if self._slot(key).set(tensor):
            self._commands = None

    def get_input_tensor(self, index: int = 0) -> ov.Tensor:
        """The tensor of an input."""
        return self._slots[self._inputs.find(index)].tensor

    def get_output_tensor(self, index: int = 0) -> ov.Tensor:
        """The tensor of an output."""
        return self._slots[len(self._inputs) + self._outputs.find(index)].tensor

    def set_input_tensor(self, index: int, tensor: ov.Tensor) -> None:
        """As `set_tensor`, for an input by its index."""
        self.set_tensor(self._inputs[self._inputs.find(index)], tensor)

    def set_output_tensor(self, index: int, tensor: ov.Tensor) -> None:
        """As `set_tensor`, for an output by its index."""
        self.set_tensor(self._outputs[self._outputs.find(index)], tensor)

    # ------------------------------------------------------------ inference

    def infer(self, inputs: Any = None, share_inputs: bool = False, share_outputs: bool = False) -> Results:
        """Runs one inference and returns its results, copied unless `share_outputs`.

        `inputs`: a mapping of ports, names or indices to arrays or tensors, a sequence in the order of
        the inputs, or one array. Raises `InputError`, `InferError`, `DeviceLostError`.
        """
        self.start_async(inputs, share_inputs)
        self.wait()
        arrays = [slot.tensor.data for slot in self._slots[len(self._inputs) :]]
        return Results(self._outputs, arrays if share_outputs else [array.copy() for array in arrays])

    def start_async(self, inputs: Any = None, share_inputs: bool = False) -> None:
        """Starts one inference; `wait` tells when it has ended. Arguments and errors as `infer`."""
        del share_inputs  # an array in device memory is used where it is, any other has to be copied
        with self._lock:
            if self._busy:
                raise InferError(
                    f"model '{self._name}', start_async: the request is busy; expected an idle one. "
                    "Wait for it, or use another request"
                )
            self._busy = True
        try:
            if inputs is not None:
                self._take_inputs(inputs)
            with translated(f"model '{self._name}', inference", InferError):
                self._submit()
        except BaseException:
            self._busy = False
            raise

    def wait(self) -> None:
        """Waits until the inference has ended. Raises `InferError` with its reason, `DeviceLostError`."""
        self._wait(FOREVER)

    def wait_for(self, timeout_ms: int) -> bool:
        """Waits at most `timeout_ms` milliseconds; whether the inference has ended."""
        return self._wait(max(0, timeout_ms) * 1_000_000)

    @property
    def results(self) -> Results:
        """The outputs of the last inference, as views of device memory."""
        return Results(self._outputs, [slot.tensor.data for slot in self._slots[len(self._inputs) :]])

    # ------------------------------------------------------------

    def _slot(self, key: PortKey) -> Slot:
        if not isinstance(key, int) and self._inputs.has(key):
            return self._slots[self._inputs.find(key)]
        if isinstance(key, int) or not self._outputs.has(key):
            names = [meta.name for meta in (*self._inputs.metas, *self._outputs.metas)]
            raise InputError(f"model '{self._name}': no port {key!r}; expected one of {', '.join(names)}")
        return self._slots[len(self._inputs) + self._outputs.find(key)]

    def _take_inputs(self, inputs: Any) -> None:
        """Checks everything first, then takes it: nothing is changed when one input is wrong."""
        chosen = {self._inputs.find(key): value for key, value in _by_key(inputs, self._inputs, self._name)}
        ready = {index: self._slots[index].checked(value) for index, value in chosen.items()}
        for index, value in ready.items():
            slot = self._slots[index]
            if isinstance(value, ov.Tensor) and slot.set(value):
                self._commands = None
            elif not isinstance(value, ov.Tensor):
                self._executable.count_staged(slot.fill(value))

    def _submit(self) -> None:
        queue = self._executable.queue()
        if self._fence is None or self._fence.queue is not queue:
            self._fence = queue.create_fence()
        if self._commands is None:
            self._commands = self._executable.record([slot.place for slot in self._slots])
        for slot in self._slots[: len(self._inputs)]:
            staged = slot.stage_in()
            if staged:
                self._executable.count_staged(staged)
        queue.execute_command_lists([self._commands], self._fence)

    def _wait(self, timeout_ns: int) -> bool:
        fence = self._fence
        if not self._busy or fence is None:
            return True
        try:
            with translated(f"model '{self._name}', inference", InferError):
                if not fence.host_synchronize(timeout_ns):
                    return False
        except BaseException:
            self._busy = False
            raise
        if self._busy:
            for slot in self._slots[len(self._inputs) :]:
                staged = slot.stage_out()
                if staged:
                    self._executable.count_staged(staged)
            self._busy = False
        return True

    def _check_idle(self, call: str) -> None:
        if self._busy:
            raise InferError(
                f"model '{self._name}', {call}: the request is busy; expected an idle one. Wait for it first"
            )


def _by_key(inputs: Any, ports: Ports, name: str) -> list[tuple[PortKey, Any]]:
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
