"""Models of plain operations alone, which need no query: that takes half as long as a compilation.

In the tests OpenVINO answers for one of each, by type and number of dimensions; attributes vary little there.
What it cannot execute all the same fails when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import openvino as ov

TYPES: Final = ("f32", "f16", "i64", "i32")
_ANY: Final = range(7)
_SPATIAL: Final = range(3, 6)
RANKS: Final[dict[str, range]] = {
    **dict.fromkeys(
        ("Add opset1", "Clamp opset1", "Concat opset1", "Convert opset1", "Divide opset1",
         "Exp opset1", "Gelu opset7", "HSwish opset4", "Maximum opset1", "Minimum opset1", "Multiply opset1",
         "Parameter opset1", "Relu opset1", "Result opset1", "ShapeOf opset3", "Sigmoid opset1",
         "Sqrt opset1", "Subtract opset1", "Tanh opset1"),
        _ANY,
    ),
    **dict.fromkeys(
        ("AvgPool opset1", "Convolution opset1", "GroupConvolution opset1", "MaxPool opset1",
         "MaxPool opset8"),
        _SPATIAL,
    ),
    "MatMul opset1": range(2, 5),
    "Range opset4": range(1),
    "Softmax opset8": range(1, 5),
}  # fmt: skip
"""Dimensions that the first input may have, by type and operation set."""
WITH_CONSTANTS: Final[dict[str, range]] = {
    "Broadcast opset3": _ANY,
    "Gather opset8": _ANY,
    "Interpolate opset11": range(4, 5),
    "MVN opset6": range(1, 5),
    "ReduceMean opset1": range(1, 5),
    "ReduceSum opset1": range(1, 5),
    "Reshape opset1": _ANY,
    "Slice opset8": range(1, 5),
    "Split opset1": range(1, 5),
    "Squeeze opset1": range(1, 5),
    "Transpose opset1": range(1, 5),
    "Unsqueeze opset1": range(5),
    "VariadicSplit opset1": range(1, 5),
}
"""The same, of operations whose other inputs are constants; of a Gather it is the axis."""
_INTERPOLATED: Final = ("linear_onnx", "nearest")


def are_all(model: ov.Model) -> bool:
    """Whether a model consists of them."""
    return not model.is_dynamic() and all(map(_is_plain, model.get_ops()))


def _is_plain(operation: Any) -> bool:
    if operation.get_type_name() == "Constant":  # nearly half of all
        return _are_plain([operation.output(0)])
    info = operation.get_type_info()
    name = f"{info.name} {info.version_id}"
    sources, outputs = operation.input_values(), operation.outputs()
    ranks = RANKS.get(name)
    if ranks is None:
        ranks = WITH_CONSTANTS.get(name)
        if ranks is None or not all(map(_is_constant, sources[2 if info.name == "Gather" else 1 :])):
            return False
    if sources and len(sources[0].get_partial_shape()) not in ranks:
        return False
    if info.name == "MaxPool" and any(output.get_target_inputs() for output in outputs[1:]):
        return False
    if info.name == "Interpolate" and operation.get_attributes()["mode"] not in _INTERPOLATED:
        return False
    return _are_plain(outputs)


def _is_constant(source: Any) -> bool:
    return bool(source.get_node().get_type_name() == "Constant")


def _are_plain(outputs: Iterable[Any]) -> bool:
    return all(output.get_element_type().to_string() in TYPES for output in outputs)
