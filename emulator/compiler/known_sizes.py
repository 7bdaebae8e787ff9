"""Compute the sizes that a model computes of known shapes, so that nothing behind the compiler has to.

A model exported with dynamic shapes computes them by operations of its own (ShapeOf, Gather, Concat, ...),
often more than half of all. With static shapes these are constants. OpenVINO folds them as well, when it
compiles; but until then each step handles them: YOLOv8n has 1184 operations with them and 700 without, and
its IR takes half of the time to write, to read and to compile.
"""

from __future__ import annotations

from typing import Any, Final

import openvino as ov
from openvino.passes import ConstantFolding, Manager

_TYPES: Final = (ov.Type.i64, ov.Type.i32)
_MOST: Final = 4096
"""Bytes of the largest tensor that is folded: larger ones are weights, to which a blob only refers."""
_FOLDED: Final = frozenset(
    ("Add", "Broadcast", "Concat", "Constant", "Gather", "Maximum", "Minimum", "Multiply", "Reshape",
     "ShapeOf", "Slice", "Squeeze", "StridedSlice", "Subtract", "Unsqueeze")
)  # fmt: skip
"""Types of operations that are folded: OpenVINO computes them rightly, whatever their inputs are."""
_BODIES: Final = ("If", "Loop", "TensorIterator")


def fold(model: ov.Model) -> None:
    """Do so in a model of static shapes. One with bodies is left alone: OpenVINO would fold all in them."""
    operations = model.get_ordered_ops()
    kinds = {operation.get_type_name() for operation in operations}
    if "ShapeOf" not in kinds or not kinds.isdisjoint(_BODIES) or model.is_dynamic():
        return
    hidden = [(output, _hidden(output)) for output in _ends(operations)]
    model.add_parameters([parameter for _, parameter in hidden])
    passes = Manager()
    passes.register_pass(ConstantFolding())
    passes.run_passes(model)
    for output, parameter in hidden:
        _move_readers(parameter.output(0), output)
        model.remove_parameter(parameter)
    if model.is_dynamic():
        model.validate_nodes_and_infer_types()  # some shapes come from what was hidden


def _ends(operations: list[Any]) -> list[Any]:
    """Return known outputs that are no sizes: no folding passes them."""
    known: set[str] = set()
    ends = []
    for operation in operations:
        kind, sources = operation.get_type_name(), operation.input_values()
        if kind in ("Parameter", "Result"):
            continue
        if kind != "ShapeOf" and not all(source.get_node().get_name() in known for source in sources):
            continue
        outputs = operation.outputs()
        if kind in _FOLDED and all(map(_is_size, outputs)) and (kind != "Gather" or _is_inside(sources)):
            known.add(operation.get_name())
        else:
            ends += outputs
    return ends


def _is_size(output: Any) -> bool:
    is_whole = output.get_element_type() in _TYPES and output.get_partial_shape().is_static
    return is_whole and output.get_tensor().size <= _MOST


def _is_inside(sources: list[Any]) -> bool:
    """Whether a Gather takes what there is, of a list."""
    data, indices = sources[0].get_shape(), sources[1].get_node()
    if len(data) != 1 or indices.get_type_name() != "Constant":
        return False
    return all(-data[0] <= index < data[0] for index in indices.get_data().ravel().tolist())


def _hidden(output: Any) -> Any:
    """Put a parameter into the place of an output; return it."""
    parameter = ov.op.Parameter(output.get_element_type(), output.get_partial_shape())
    _move_readers(output, parameter.output(0))
    return parameter


def _move_readers(source: Any, target: Any) -> None:
    for reader in source.get_target_inputs():
        reader.replace_source_output(target)
