"""A module of torch on the device: called like the module, and saved to run where torch is not installed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.errors import InputError, ModelError, PropertyError
from softnpu.plugin.infer_request import InferRequest
from softnpu.plugin.ports import Port
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.torch import values
from softnpu.plugin.torch.form import KEY, Form
from softnpu.plugin.torch.structure import build, indices_in


class CompiledModule:
    """Takes the arguments of the module and returns what it returns; safe for many threads.

    Tensors may be of torch or of numpy. Those in device memory (see `new_input`) are read in place, others
    are copied once. What it returns is of torch if a tensor of torch was given, else of numpy, and is a copy.
    """

    def __init__(self, compiled: CompiledModel, form: Form, classes: Mapping[str, type]) -> None:
        self._compiled = compiled
        self._form = form
        compiled.extra[KEY] = form.encode()
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
        """The tensors among the arguments, by their paths: `x`, or `batch.ids` inside of a container."""
        return [spec.name for spec in self._inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One inference. Raises `InputError` for arguments unlike those with which the module was traced."""
        of_torch = False

        def take(value: Any, path: str) -> tuple[Any, str]:
            nonlocal of_torch
            of_torch = of_torch or values.is_torch(value)
            return value, path

        given = self._form.bind(args, kwargs, take)
        tensors = {
            index: values.to_device(value, path, self._inputs[index])
            for index, (value, path) in given.items()
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
        """An uninitialised tensor in device memory for an input: what is written into it is not copied again.

        It is of torch where torch has been imported, else of numpy. A `shape` is needed where the input has
        none of its own. Raises `InputError`.
        """
        spec = next((spec for spec in self._inputs if name in (spec.name, *spec.names)), None)
        if spec is None:
            raise InputError(
                f"module '{self._form.name}': no input {name!r}; expected {' or '.join(self.input_names)}"
            )
        partial = spec.partial_shape
        if shape is None and partial.is_dynamic:
            raise InputError(f"input '{name}': no shape given; expected one within {partial}")
        chosen = tuple(partial.to_shape() if shape is None else shape)
        kind = values.dtype_of(spec)
        size = int(np.prod(chosen)) * kind.itemsize
        array = self._compiled.context.alloc_host(max(1, size)).view(kind, chosen)
        return values.shared(array, spec)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the compiled module to one file, with all its weights, for `load`.

        A file that is there is replaced when all is written. Raises `NpuError`, and `OSError` if it cannot be
        written.
        """
        for name in ("ENABLE_WEIGHTLESS", "NPU_EXPORT_RAW_BLOB"):
            if self._compiled.get_property(name):
                raise PropertyError(
                    f"module '{self._form.name}', save: compiled with {name}=YES; expected NO. A saved module"
                    " is one file with weights and with a record of its arguments"
                )
        self._compiled.export_model(Path(path))

    def __repr__(self) -> str:
        platform = self._compiled.meta.platform
        return f"<CompiledModule {self._form.name}{self._form.signature()}, platform {platform}>"

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

        return build(self._form.outputs, tensor, self._classes)

    def _check(self) -> None:
        """Raises `ModelError` when the record is not one of this model."""
        inputs = [index for index in self._form.inputs if index >= 0]
        outputs = indices_in(self._form.outputs)
        expected = (len(self._inputs), len(self._outputs))
        if (sorted(inputs), outputs) != (list(range(expected[0])), list(range(expected[1]))):
            raise ModelError(
                f"module '{self._form.name}': its record has inputs {inputs} and outputs {outputs}; expected"
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
