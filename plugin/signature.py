"""The signature of a compiled model: its ports with names, shapes and layouts, and its batch.

The device has the arguments of the graph (`GraphMeta`). Most ports are one argument, but states and shape
tensors are arguments without a port, and a model split by the plugin has other shapes on the device.
"""

from __future__ import annotations

import msgspec
import openvino as ov

from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta


class PortSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output: `shape` as written by `openvino.PartialShape`, `argument` its graph argument.

    `shape_argument` is the argument with its shape at each inference, -1 without one. `batch_axis` is the
    sample axis of a batch split by the plugin, each sample `per_sample` long on that axis; -1 without a
    batch.
    """

    name: str
    names: tuple[str, ...]
    element_type: str
    shape: str
    layout: str
    argument: int
    shape_argument: int = -1
    batch_axis: int = -1
    per_sample: int = 1

    @property
    def partial_shape(self) -> ov.PartialShape:
        """The allowed shapes of the port's tensors."""
        return ov.PartialShape(self.shape)


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of a model, each kind in the order of the model.

    If the plugin splits the batch, `batch` is the model's batch as written by `openvino.Dimension`, such as
    `4`, `?` or `1..8`: the graph then is the model for one sample, and ports have the shapes of the original
    model.
    """

    name: str
    inputs: tuple[PortSpec, ...]
    outputs: tuple[PortSpec, ...]
    batch: str = ""

    @property
    def ports(self) -> tuple[PortSpec, ...]:
        """All inputs, then all outputs."""
        return self.inputs + self.outputs


def signature_of(meta: GraphMeta) -> Signature:
    """Return the signature of a graph whose arguments have the shapes of the model."""
    shape_arguments = meta.shape_tensors
    states = {index for state in meta.states for index in (state.input, state.output)}
    ports = [
        (argument.input, _port(index, argument, shape_arguments.get(index, -1)))
        for index, argument in enumerate(meta.arguments)
        if argument.shape_of < 0 and index not in states
    ]
    return Signature(
        name=meta.name,
        inputs=tuple(port for is_input, port in ports if is_input),
        outputs=tuple(port for is_input, port in ports if not is_input),
    )


def _port(index: int, argument: ArgumentMeta, shape_argument: int) -> PortSpec:
    return PortSpec(
        name=argument.name,
        names=argument.names,
        element_type=argument.element_type,
        shape=argument.partial_shape or str(ov.PartialShape(list(argument.shape))),
        layout=argument.layout,
        argument=index,
        shape_argument=shape_argument,
    )
