"""Weights separation: a blob without weights, and a graph that turns the client's weights into its inputs.

As OpenVINO's plugin asks for it ("iterative"): the same IR is compiled again and again, with the number of
the call. Each result whose inputs are `vpux_ow_OFFSET` is an init graph; the first other one is the main
graph and the last. Here there is one init graph. Its inputs are constants of the client as they lie at this
offset of the weights file, its outputs `vpux_tw_OFFSET` are what the main graph takes as inputs. Nothing is
transformed on the way: the CPU runtime packs weights itself, at each inference if they are inputs.

Where a constant lay in the file is in the rt_info of the IR, by its number in topological order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov

from softnpu.emulator.compiler.arguments import Original, original
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.interface.commands import MAX_DIMS
from softnpu.emulator.interface.result import ZeResult

_ORIGINAL = "vpux_ow_"
SEPARATED = "vpux_tw_"
"""Prefix of a main graph's inputs for weights."""
_TYPES = {"f16", "bf16", "f32", "f64", "i8", "u8"}
_SMALLEST = 64
"""Constants of fewer bytes stay what they are."""
_READERS = {
    "Add": (0, 1), "Subtract": (0, 1), "Multiply": (0, 1), "Divide": (0, 1), "MatMul": (0, 1),
    "Convolution": (1,), "GroupConvolution": (1,), "PRelu": (1,), "Gather": (0,),
}  # fmt: skip
"""Consumers of weights as data, by operation and input. Others may need a constant for their shapes."""


@dataclass(frozen=True)
class Weight:
    """A constant that the client has in its file: all nodes with these bytes as this type and shape."""

    offset: int
    nodes: tuple[Any, ...]

    def parameter(self, prefix: str) -> Any:
        """Return an input that replaces it."""
        parameter = ov.op.Parameter(
            self.nodes[0].get_element_type(), self.nodes[0].get_output_partial_shape(0)
        )
        parameter.set_friendly_name(f"{prefix}{self.offset}")
        return parameter


def find(model: ov.Model) -> list[Weight]:
    """Return the constants of a model that can be separated, in topological order.

    Empty if arguments have dynamic dimensions: their shape tensors would come behind the weights, where
    OpenVINO's plugin expects no inputs.
    """
    if any(port.partial_shape.is_dynamic for port in [*model.inputs, *model.outputs]):
        return []
    nodes_by_offset: dict[int, list[Any]] = {}
    for number, node in enumerate(op for op in model.get_ordered_ops() if op.get_type_name() == "Constant"):
        offset = _hint(model, "bin_offset", number)
        if offset is None or not _as_in_the_file(model, node, number) or not is_weight(node):
            continue
        nodes = nodes_by_offset.setdefault(int(offset), [])
        # the client knows a constant by its offset only
        if not nodes or _kind(nodes[0]) == _kind(node):
            nodes.append(node)
    return [Weight(offset, tuple(nodes)) for offset, nodes in nodes_by_offset.items()]


def init_graph(model: ov.Model, weights: Sequence[Weight]) -> ov.Model:
    """Return the graph from the weights of the client to what the main graph takes."""
    inputs = [weight.parameter(_ORIGINAL) for weight in weights]
    outputs = [ov.op.Result(parameter.output(0)) for parameter in inputs]
    for weight, result in zip(weights, outputs, strict=True):
        result.set_friendly_name(f"{SEPARATED}{weight.offset}")
    return ov.Model(outputs, inputs, f"{model.get_friendly_name()}_init")


def replace_by_inputs(
    model: ov.Model, weights: Sequence[Weight], before: Sequence[Original], subject: str
) -> list[Original]:
    """Make inputs of the weights, behind all inputs that the model has; `before` with them."""
    if not weights:
        return list(before)
    count = len(model.inputs)
    inputs = [weight.parameter(SEPARATED) for weight in weights]
    expected = "weights that can be inputs"
    with openvino_errors(ZeResult.ERROR_UNSUPPORTED_FEATURE, f"{subject}, weights", expected):
        for weight, parameter in zip(weights, inputs, strict=True):
            for node in weight.nodes:
                for reader in list(node.output(0).get_target_inputs()):
                    reader.replace_source_output(parameter.output(0))
        model.add_parameters(inputs)
        model.validate_nodes_and_infer_types()
    added = [original(port, port.node.friendly_name) for port in model.inputs[count:]]
    return [*before[:count], *added, *before[count:]]


def _hint(model: ov.Model, name: str, number: int) -> str | None:
    key = f"ws_{name}_{number}"
    return str(model.get_rt_info(key).astype(str)) if model.has_rt_info(key) else None


def _as_in_the_file(model: ov.Model, node: Any, number: int) -> bool:
    """Whether the constant is still what lies in the file: a conversion may have been folded into it."""
    size, kind = _hint(model, "original_size", number), _hint(model, "original_dtype", number)
    return size == str(node.get_byte_size()) and kind == node.get_element_type().get_type_name()


def is_weight(node: Any) -> bool:
    if node.get_element_type().get_type_name() not in _TYPES or node.get_byte_size() < _SMALLEST:
        return False
    # Level Zero cuts longer shapes, so OpenVINO would expect fewer bytes.
    if len(node.get_output_shape(0)) > MAX_DIMS:
        return False
    return all(index in _READERS.get(kind, ()) for kind, index in _readers(node.output(0)))


def _readers(port: Any) -> Iterator[tuple[str, int]]:
    """Operations and inputs that read a value, also behind a conversion."""
    for reader in port.get_target_inputs():
        kind = reader.get_node().get_type_name()
        if kind == "Convert":
            yield from _readers(reader.get_node().output(0))
        else:
            yield kind, reader.get_index()


def _kind(node: Any) -> tuple[str, tuple[int, ...]]:
    return node.get_element_type().get_type_name(), tuple(node.get_output_shape(0))
