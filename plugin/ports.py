"""Ports of a compiled model, as real `openvino` ports: names, shape, element type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common import model_texts
from softnpu.plugin.errors import InputError, InputTypeError
from softnpu.plugin.signature import PortSpec, Signature

Port = Any
"""`openvino.Output`; openvino has no stubs that a type checker could use."""
PortKey = Any
"""A port, a tensor name, or an index."""


class Ports:
    """The inputs or the outputs of a model, by index, name or port."""

    def __init__(self, model: str, kind: str, ports: Sequence[Port], specs: Sequence[PortSpec]) -> None:
        self.model = f"model '{model}'"
        self._kind = kind
        self._ports = list(ports)
        self.specs = list(specs)
        self._by_name: dict[str, int] = {}
        for index, spec in enumerate(specs):
            for name in (spec.name, *spec.names):
                self._by_name.setdefault(name, index)

    def __len__(self) -> int:
        return len(self._ports)

    def __iter__(self) -> Iterator[Port]:
        return iter(self._ports)

    def __getitem__(self, index: int) -> Port:
        return self._ports[index]

    def has(self, key: PortKey) -> bool:
        """Return whether `key` names one of these ports."""
        if isinstance(key, str):
            return key in self._by_name
        if isinstance(key, int):
            return 0 <= key < len(self._ports)
        return any(key == port for port in self._ports) or self._of_model(key) is not None

    def find(self, key: PortKey) -> int:
        """Return the index of a port. Raises `InputError` with the key and the existing ports."""
        index: int | None
        if isinstance(key, str):
            index = self._by_name.get(key)
        elif isinstance(key, int):
            index = key if 0 <= key < len(self._ports) else None
        else:
            index = next((i for i, port in enumerate(self._ports) if port == key), None)
            index = self._of_model(key) if index is None else index
        if index is None:
            names = ", ".join(f"{i} '{spec.name}'" for i, spec in enumerate(self.specs))
            is_key = isinstance(key, str) or hasattr(key, "get_node") or (isinstance(key, int) and key >= 0)
            kind = InputError if is_key else InputTypeError
            raise kind(f"{self.model}: no {self._kind} {key!r}; expected one of {names}")
        return index

    def describe(self, index: int) -> str:
        """Return `model 'm', input 'x'`, for messages."""
        return f"{self.model}, {self._kind} '{self.specs[index].name}'"

    def _of_model(self, key: PortKey) -> int | None:
        """Return the index for a port of the original `openvino.Model`, which has the same tensor names."""
        if not hasattr(key, "get_names"):
            return None
        names = model_texts.tensor_names(key)
        # outputs of one tensor have the same names: only the names of their results differ
        index = self._by_name.get(model_texts.friendly_name(key.get_node()))
        if index is not None and not names.isdisjoint(self.specs[index].names):
            return index
        return next((self._by_name[name] for name in names if name in self._by_name), None)


def make_ports(signature: Signature) -> tuple[Ports, Ports]:
    """Return inputs and outputs of a compiled model, from its signature alone."""
    inputs = [_parameter(spec) for spec in signature.inputs]
    sources = [_parameter(spec) for spec in signature.outputs]
    results = [ops.result(source) for source in sources]
    model = ov.Model(results, inputs + sources, signature.name)
    return (
        Ports(signature.name, "input", model.inputs[: len(inputs)], signature.inputs),
        Ports(signature.name, "output", model.outputs, signature.outputs),
    )


def described(kind: str, inputs: Ports, outputs: Ports) -> str:
    """Return the `repr` of an object of a class with these ports, as OpenVINO writes it."""
    sides = (",\n".join(map(repr, ports)) for ports in (inputs, outputs))
    return "<{}:\ninputs[\n{}\n]\noutputs[\n{}\n]>".format(kind, *sides)


def _parameter(spec: PortSpec) -> Any:
    node = ops.parameter(spec.partial_shape, element_type(spec))
    node.set_friendly_name(spec.name)
    node.output(0).set_names(set(spec.names))
    if spec.layout:
        node.set_layout(ov.Layout(spec.layout))
    return node


def bytes_of(kind: Any, elements: int) -> int:
    """Return the bytes of that many elements; types below 8 bits are packed."""
    return (elements * int(kind.bitwidth) + 7) // 8


def element_type(spec: PortSpec) -> Any:
    """Return the `openvino.Type` of a port."""
    return getattr(ov.Type, spec.element_type)
