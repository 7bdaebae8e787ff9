"""Fold constant subgraphs that OpenVINO does not, before a model is compiled.

OpenVINO folds most of them. The rest (a Convolution, AvgPool or GRUCell of constants) its CPU runtime
(2026.4) computes once, at compilation. A consumer may then write its result into the same memory: in the
second inference an Add has been added twice. A NormalizeL2 even writes into the constant itself. So the
values become constants, computed from copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13
from openvino.passes import ConstantFolding, Manager

from softnpu.emulator.common.model_bodies import all_bodies

_FOLDED: Final = frozenset(
    ("Broadcast", "Concat", "Convert", "Reshape", "Select", "ShapeOf", "Slice", "Squeeze", "StridedSlice",
     "Tile", "Transpose", "Unsqueeze", "VariadicSplit")
)  # fmt: skip
"""Types of operations that OpenVINO always folds."""

_FOLDED_FLOATS: Final = frozenset(("Add", "Gather", "Multiply", "Subtract"))
"""Types folded on these element types only. Most models have no other operations on constants alone."""
_FLOATS: Final = ("f32", "f16", "bf16")

_NEVER: Final = frozenset(
    ("Assign", "FakeConvert", "FakeQuantize", "If", "Loop", "Multinomial", "Parameter", "RandomUniform",
     "ReadValue", "Result", "TensorIterator")
)  # fmt: skip
"""Operations never folded: not constant on constants, treated as 8-bit weights, or with bodies."""
_QUANTISES: Final = "FakeQuantize"
_ELEMENTWISE: Final = frozenset(
    ("Add", "Divide", "Maximum", "Minimum", "Multiply", "PRelu", "Power", "SquaredDifference", "Subtract")
)
"""Types of operations that overwrite a quantised input, and do not treat it as weights."""


def fold(core: ov.Core, model: ov.Model, properties: Mapping[str, str]) -> None:
    """Replace such values by constants in a newly read model and its bodies.

    `properties` are those of the coming compilation.
    """
    for part in [model, *all_bodies(model)]:
        values = list(_values(part))
        if values:
            _replace(core, values, properties)


def are_in(model: ov.Model) -> bool:
    """Whether a model may have such values: OpenVINO folds more than is listed in `_FOLDED`."""
    return any(next(_values(part), None) is not None for part in [model, *all_bodies(model)])


def _values(model: Any) -> Iterator[Any]:
    """Yield constant values with other consumers, unless OpenVINO folds everything they depend on."""
    constant: dict[str, bool] = {}  # by name: whether OpenVINO may leave it unfolded
    parts = []
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Constant":
            constant[node.get_name()] = False
            continue
        if (kind in _NEVER and not _is_written_over(node)) or not node.get_input_size():
            continue
        if node.input_value(0).get_node().get_name() not in constant:
            continue
        sources = [value.get_node().get_name() for value in node.input_values()]
        if all(source in constant for source in sources) and all(_is_known(out) for out in node.outputs()):
            constant[node.get_name()] = not _is_folded(node) or any(constant[source] for source in sources)
            parts.append(node)
    for node in parts:
        if constant[node.get_name()]:
            for output in node.outputs():
                if any(_is_outside(target, constant) for target in output.get_target_inputs()):
                    yield output


def _is_written_over(node: Any) -> bool:
    """Whether it quantises for elementwise operations alone."""
    if node.get_type_name() != _QUANTISES:
        return False
    readers = {target.get_node().get_type_name() for target in node.output(0).get_target_inputs()}
    return bool(readers & _ELEMENTWISE) and readers <= {*_ELEMENTWISE, "Result"}


def _is_folded(node: Any) -> bool:
    kind = node.get_type_name()
    return kind in _FOLDED or (
        kind in _FOLDED_FLOATS and node.get_input_element_type(0).to_string() in _FLOATS
    )


def _is_known(output: Any) -> bool:
    is_known: bool = output.get_partial_shape().is_static and output.get_element_type() != ov.Type.string
    return is_known


def _is_outside(target: Any, constant: Mapping[str, bool]) -> bool:
    node = target.get_node()
    return node.get_type_name() != "Result" and node.get_name() not in constant


def _replace(core: ov.Core, values: list[Any], properties: Mapping[str, str]) -> None:
    submodel = ov.Model([opset13.result(value) for value in values], [], "constants").clone()
    for node in submodel.get_ops():
        if node.get_type_name() == "Constant":
            node.output(0).replace(_copied(node).output(0))
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(submodel)
    results = submodel.get_results()
    left = [
        at for at, one in enumerate(results) if one.input_value(0).get_node().get_type_name() != "Constant"
    ]
    if not left:
        return
    rest = ov.Model([results[at] for at in left], [], "constants")
    request = core.compile_model(rest, "CPU", {**properties, "NUM_STREAMS": "1"}).create_infer_request()
    request.infer()
    for position, at in enumerate(left):
        _replace_by(values[at], np.array(request.get_output_tensor(position).data))


def _copied(constant: Any) -> Any:
    data = ov.Tensor(constant.get_element_type(), constant.get_output_shape(0))
    if data.byte_size:
        constant.tensor_view.copy_to(data)
    return ov.op.Constant(data, shared_memory=True)


def _replace_by(value: Any, data: Any) -> None:
    node = value.get_node()
    computed = opset13.constant(data, value.get_element_type())
    computed.set_friendly_name(f"{node.get_friendly_name()}/constant {value.get_index()}")
    for target in value.get_target_inputs():
        if target.get_node().get_type_name() != "Result":
            target.replace_source_output(computed.output(0))
