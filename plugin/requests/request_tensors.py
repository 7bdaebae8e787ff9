"""The tensors of an infer request, by port, name or index, as in `openvino.InferRequest`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import openvino as ov

from softnpu.plugin.errors import InputError, InputTypeError
from softnpu.plugin.ports import Port, PortKey, Ports
from softnpu.plugin.requests.recording import Recording
from softnpu.plugin.tensors import Slot


class RequestTensors(ABC):
    """The part of an infer request for its ports."""

    _name: str
    _inputs: Ports
    _outputs: Ports
    _recording: Recording

    def get_tensor(self, key: PortKey) -> ov.Tensor:
        """Return the tensor of a port, by port or name. Its `data` is a view of device memory."""
        return self._slot(key).whole

    def set_tensor(self, key: PortKey, tensor: ov.Tensor) -> None:
        """Use `tensor` for a port from now on: memory of this device in place, other memory by copies.

        A name of both an input and an output means the input, as in OpenVINO.
        Raises `InputError` for a wrong shape or element type.
        """
        self._set_all([(self._slot(key), tensor)])

    def set_tensors(
        self, inputs: Mapping[PortKey, ov.Tensor] | PortKey, tensors: list[ov.Tensor] | None = None
    ) -> None:
        """Set the tensors of several ports, by name, port, or index of an input.

        Or, for one input by name or port, a list of tensors with the samples of its batch.
        """
        slots = self._recording.inputs
        if tensors is not None:
            self._set_samples(slots[self._inputs.find(inputs)], tensors)
            return
        self._set_all(
            (slots[self._inputs.find(key)] if isinstance(key, int) else self._slot(key), tensor)
            for key, tensor in inputs.items()
        )

    def get_input_tensor(self, index: int = 0) -> ov.Tensor:
        """Return the tensor of an input."""
        return self._recording.inputs[self._inputs.find(index)].whole

    def get_output_tensor(self, index: int = 0) -> ov.Tensor:
        """Return the tensor of an output."""
        return self._recording.outputs[self._outputs.find(index)].tensor

    def set_input_tensor(self, index: Any, tensor: ov.Tensor | None = None) -> None:
        """Set the tensor of an input by its index, or of the only input."""
        self._set_at(self._inputs, self._recording.inputs, index, tensor)

    def set_output_tensor(self, index: Any, tensor: ov.Tensor | None = None) -> None:
        """Set the tensor of an output by its index, or of the only output."""
        self._set_at(self._outputs, self._recording.outputs, index, tensor)

    def set_input_tensors(
        self,
        inputs: Mapping[PortKey, ov.Tensor] | list[ov.Tensor] | int,
        tensors: list[ov.Tensor] | None = None,
    ) -> None:
        """Set the tensors of several inputs, by index, name or port.

        Or, for one input by index or the only input, a list of tensors with the samples of its batch.
        """
        slots = self._recording.inputs
        if tensors is None and isinstance(inputs, Mapping):
            self._set_all((slots[self._inputs.find(key)], tensor) for key, tensor in inputs.items())
            return
        index, samples = (0, inputs) if tensors is None else (inputs, tensors)
        if tensors is None and len(slots) != 1:
            raise InputError(
                f"model '{self._name}': tensors without an index, and {len(slots)} inputs; expected one"
            )
        self._set_samples(slots[self._inputs.find(index)], samples)

    def set_output_tensors(self, outputs: Mapping[PortKey, ov.Tensor]) -> None:
        """Set the tensors of several outputs, by index, name or port."""
        slots = self._recording.outputs
        self._set_all((slots[self._outputs.find(key)], tensor) for key, tensor in outputs.items())

    @property
    def input_tensors(self) -> list[ov.Tensor]:
        """The tensors of all inputs."""
        return [slot.whole for slot in self._recording.inputs]

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

    # ------------------------------------------------------------

    @abstractmethod
    def _check_idle(self, call: str) -> None:
        """Raise `InferError` while an inference uses the tensors."""

    def _set_samples(self, slot: Slot, tensors: Any) -> None:
        if not isinstance(tensors, list) or not all(isinstance(tensor, ov.Tensor) for tensor in tensors):
            kinds = sorted({type(each).__name__ for each in tensors}) if isinstance(tensors, list) else []
            found = f"a list of {', '.join(kinds)}" if kinds else type(tensors).__name__
            raise InputTypeError(f"model '{self._name}', {slot.name}: {found}; expected a list of tensors")
        if not tensors:
            raise InputError(f"model '{self._name}', {slot.name}: no tensors; expected one for each sample")
        self._check_idle("set_tensors")
        if len(tensors) == 1:
            slot.set(tensors[0])
        else:
            slot.set_samples(tensors)

    def _set_at(self, ports: Ports, slots: Sequence[Slot], index: Any, tensor: ov.Tensor | None) -> None:
        if tensor is None:
            index, tensor = 0, index
            if len(ports) != 1:
                raise InputError(
                    f"model '{self._name}': a tensor without an index, and {len(ports)} ports; expected an "
                    "index"
                )
        self._set_all([(slots[ports.find(index)], tensor)])

    def _set_all(self, tensors: Iterable[tuple[Slot, ov.Tensor]]) -> None:
        self._check_idle("set_tensor")
        for slot, tensor in tensors:
            slot.set(tensor)

    def _slot(self, key: PortKey) -> Slot:
        if not isinstance(key, int) and not _is_result(key) and self._inputs.has(key):
            return self._recording.inputs[self._inputs.find(key)]
        if isinstance(key, int) or not self._outputs.has(key):
            names = [spec.name for spec in (*self._inputs.specs, *self._outputs.specs)]
            raise InputError(f"model '{self._name}': no port {key!r}; expected one of {', '.join(names)}")
        return self._recording.outputs[self._outputs.find(key)]


def _is_result(key: PortKey) -> bool:
    """Return whether `key` is an output of a model. An output that is an input has the same tensor names."""
    return hasattr(key, "get_node") and key.get_node().get_type_name() == "Result"
