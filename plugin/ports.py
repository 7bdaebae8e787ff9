"""Ports of a compiled model, as real `openvino` ports: names, shape, element type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.interface.blob import ArgumentMeta, GraphMeta
from softnpu.plugin.errors import InputError

Port = Any
"""`openvino.Output`; openvino has no stubs that a type checker could use."""
PortKey = Any
"""A port, a tensor name, or an index."""


class Ports:
    """The inputs or the outputs of a model, found by index, name or port."""

    def __init__(self, model: str, kind: str, ports: Sequence[Port], metas: Sequence[ArgumentMeta]) -> None:
        self._model = model
        self._kind = kind
        self._ports = list(ports)
        self.metas = list(metas)
        self._by_name = {name: index for index, meta in enumerate(metas) for name in (meta.name, *meta.names)}

    def __len__(self) -> int:
        return len(self._ports)

    def __iter__(self) -> Iterator[Port]:
        return iter(self._ports)

    def __getitem__(self, index: int) -> Port:
        return self._ports[index]

    def has(self, key: PortKey) -> bool:
        """Whether `key` finds one of these ports."""
        if isinstance(key, str):
            return key in self._by_name
        if isinstance(key, int):
            return 0 <= key < len(self._ports)
        return any(key == port for port in self._ports) or self._foreign(key) is not None

    def find(self, key: PortKey) -> int:
        """Index of the port; `InputError` names the key and the ports that there are."""
        index: int | None
        if isinstance(key, str):
            index = self._by_name.get(key)
        elif isinstance(key, int):
            index = key if 0 <= key < len(self._ports) else None
        else:
            index = next((i for i, port in enumerate(self._ports) if port == key), None)
            index = self._foreign(key) if index is None else index
        if index is None:
            names = ", ".join(f"{i} '{meta.name}'" for i, meta in enumerate(self.metas))
            raise InputError(f"model '{self._model}': no {self._kind} {key!r}; expected one of {names}")
        return index

    def describe(self, index: int) -> str:
        """For messages: `model 'm', input 'x'`."""
        return f"model '{self._model}', {self._kind} '{self.metas[index].name}'"

    def _foreign(self, key: PortKey) -> int | None:
        # a port of the openvino.Model that was compiled: it has the same tensor names
        if not hasattr(key, "get_names"):
            return None
        return next((self._by_name[name] for name in key.get_names() if name in self._by_name), None)


def make_ports(meta: GraphMeta) -> tuple[Ports, Ports]:
    """Inputs and outputs of a compiled model, from its metadata alone (the model itself is not needed)."""
    inputs = [_parameter(argument) for argument in meta.inputs]
    sources = [_parameter(argument) for argument in meta.outputs]
    results = [ops.result(source) for source in sources]
    model = ov.Model(results, inputs + sources, meta.name)
    return (
        Ports(meta.name, "input", model.inputs[: len(inputs)], meta.inputs),
        Ports(meta.name, "output", model.outputs, meta.outputs),
    )


def _parameter(argument: ArgumentMeta) -> Any:
    node = ops.parameter(list(argument.shape), element_type(argument))
    node.set_friendly_name(argument.name)
    node.output(0).set_names(set(argument.names))
    return node


def element_type(argument: ArgumentMeta) -> Any:
    """`openvino.Type` of an argument."""
    return getattr(ov.Type, argument.element_type)
