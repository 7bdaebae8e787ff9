"""What the user sees of a compiled model: its ports with names, shapes and layouts, and its batch.

The device sees the arguments of the graph (`GraphMeta`). Most ports are one argument, but there are arguments
that no user sees (states, shapes), and a model whose batch the plugin splits has other shapes on the device.
"""

from __future__ import annotations

import msgspec
import openvino as ov

from softnpu.emulator.interface.blob import ArgumentMeta, GraphMeta


class PortSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output: `shape` as `openvino.PartialShape` writes it, `argument` its graph argument."""

    name: str
    names: tuple[str, ...]
    element_type: str
    shape: str
    layout: str
    argument: int

    @property
    def partial_shape(self) -> ov.PartialShape:
        """The shapes that tensors of the port may have."""
        return ov.PartialShape(self.shape)


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of a model, each kind in the order of the model."""

    name: str
    inputs: tuple[PortSpec, ...]
    outputs: tuple[PortSpec, ...]

    @property
    def ports(self) -> tuple[PortSpec, ...]:
        """All inputs, then all outputs."""
        return self.inputs + self.outputs


def signature_of(meta: GraphMeta) -> Signature:
    """The ports of a graph whose arguments are what the user gave."""
    ports = [(argument.input, _port(index, argument)) for index, argument in enumerate(meta.arguments)]
    return Signature(
        name=meta.name,
        inputs=tuple(port for is_input, port in ports if is_input),
        outputs=tuple(port for is_input, port in ports if not is_input),
    )


def _port(index: int, argument: ArgumentMeta) -> PortSpec:
    return PortSpec(
        name=argument.name,
        names=argument.names,
        element_type=argument.element_type,
        shape=str(ov.PartialShape(list(argument.shape))),
        layout=argument.layout,
        argument=index,
    )
