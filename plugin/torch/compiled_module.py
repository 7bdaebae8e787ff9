"""A torch module on the device: called like the module, and saved for processes without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.errors import InputError, ModelError, PropertyError
from softnpu.plugin.ports import Port
from softnpu.plugin.requests.infer_request import InferRequest
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.torch import values
from softnpu.plugin.torch.module_signature import KEY, ModuleSignature
from softnpu.plugin.torch.structure import build, indices_in


class CompiledModule:
    """Has the arguments and results of the module; thread-safe.

    Tensors may be of torch or of numpy. Those in device memory (see `new_input`) are read in place, others
    are copied once. Results are copies, of torch if any argument was a torch tensor, else of numpy.
    """

    def __init__(
        self, compiled: CompiledModel, signature: ModuleSignature, classes: Mapping[str, type]
    ) -> None:
        self._compiled = compiled
        self._signature = signature
        self._name = signature.name
        compiled.extra[KEY] = signature.encode()
        self._classes = dict(classes)
        self._inputs = [_spec(port) for port in compiled.inputs]
        self._outputs = [_spec(port) for port in compiled.outputs]
        self._check()
        self._idle: list[InferRequest] = []  # append and pop are atomic

    @property
    def compiled_model(self) -> CompiledModel:
        """The compiled model: its properties, and requests for asynchronous work."""
        return self._compiled

    @property
    def input_names(self) -> list[str]:
        """The paths of the tensors among the arguments: `x`, or `batch.ids` in a container."""
        return [spec.name for spec in self._inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one inference. Raises `InputError` for arguments that differ from those of the trace."""
        of_torch = False

        def take(value: Any, path: str) -> tuple[Any, str]:
            nonlocal of_torch
            of_torch = of_torch or values.is_torch(value)
            return value, path

        arguments = self._signature.bind(args, kwargs, take)
        tensors = {
            index: values.to_device(value, path, self._inputs[index])
            for index, (value, path) in arguments.items()
        }
        request = self._request()
        try:
            for index, tensor in tensors.items():
                request.set_input_tensor(index, tensor)
            request.infer(share_outputs=True)
            return self._result(request, of_torch)
        finally:
            self._idle.append(request)

    def new_input(self, name: str, shape: Sequence[int] | None = None) -> Any:
        """Create an uninitialised tensor in device memory for an input, which is used in place.

        It is of torch if torch has been imported, else of numpy. A dynamic input needs a `shape`.
        Raises `InputError`.
        """
        spec = next((spec for spec in self._inputs if name in (spec.name, *spec.names)), None)
        if spec is None:
            expected = " or ".join(self.input_names)
            raise InputError(f"module '{self._name}': no input {name!r}; expected {expected}")
        partial = spec.partial_shape
        if shape is None and partial.is_dynamic:
            raise InputError(f"input '{name}': no shape given; expected one within {partial}")
        dimensions = tuple(partial.to_shape() if shape is None else shape)
        kind = values.dtype_of(spec)
        size = int(np.prod(dimensions)) * kind.itemsize
        array = self._compiled.context.alloc_host(max(1, size)).view(kind, dimensions)
        return values.shared(array, spec)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled module to one file, with all its weights, for `load`.

        An existing file is replaced after a complete write. Raises `NpuError`, and `OSError` if it cannot be
        written.
        """
        for name in ("ENABLE_WEIGHTLESS", "NPU_EXPORT_RAW_BLOB"):
            if self._compiled.get_property(name):
                raise PropertyError(
                    f"module '{self._name}', save: compiled with {name}=YES; expected NO. A saved module"
                    " is one file with weights and with a record of its arguments"
                )
        self._compiled.export_model(Path(path))

    def __repr__(self) -> str:
        platform = self._compiled.meta.platform
        return f"<CompiledModule {self._name}{self._signature}, platform {platform}>"

    # ------------------------------------------------------------

    def _request(self) -> InferRequest:
        try:
            return self._idle.pop()
        except IndexError:
            return self._compiled.create_infer_request()

    def _result(self, request: InferRequest, of_torch: bool) -> Any:
        def tensor(index: int) -> Any:
            array = request.get_output_tensor(index).data
            return values.from_device(array, self._outputs[index], of_torch)

        return build(self._signature.outputs, tensor, self._classes)

    def _check(self) -> None:
        """Raise `ModelError` when the record does not fit the model."""
        inputs = [index for index in self._signature.inputs if index >= 0]
        outputs = indices_in(self._signature.outputs)
        expected = (len(self._inputs), len(self._outputs))
        if (sorted(inputs), outputs) != (list(range(expected[0])), list(range(expected[1]))):
            raise ModelError(
                f"module '{self._name}': its record has inputs {inputs} and outputs {outputs}; expected"
                f" those of a model with {expected[0]} and {expected[1]}. Save the module again"
            )


def _spec(port: Port) -> PortSpec:
    return PortSpec(
        name=port.get_node().get_friendly_name(),
        names=tuple(sorted(port.get_names())),
        element_type=port.get_element_type().get_type_name(),
        shape=str(port.get_partial_shape()),
        layout="",
        argument=-1,
    )
