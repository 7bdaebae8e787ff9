"""The suite's small models, in the layout in which programs pass them to the driver."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov

COUNT = 16
"""Elements of each tensor: shape 1 x 16."""
SIZE = COUNT * 4
"""Bytes of each tensor in f32."""
FACTOR = 2.0
NAMES = ("left", "right", "sum")
"""The operations whose values are the arguments; tensors are called `NAME:0`, the result `RESULT`."""
RESULT = "result of the sum"


@dataclass(frozen=True)
class Model:
    """An IR: `xml` and `weights`. Arguments are named by index, as the OpenVINO plugin does."""

    xml: bytes
    weights: bytes
    build_flags: str

    def serialised(self, compiler_major: int, compiler_minor: int) -> bytes:
        """Pack version, number of parts (2), then size and bytes of the XML and the weights."""
        return b"".join(
            (
                struct.pack("<HHI", compiler_major, compiler_minor, 2),
                struct.pack("<Q", len(self.xml)),
                self.xml,
                struct.pack("<Q", len(self.weights)),
                self.weights,
            )
        )


def build_flags(inputs: tuple[str, str] = ("FP32", "FP32"), output: str = "FP32", config: str = "") -> str:
    """Return the OpenVINO plugin's line for these precisions."""
    precisions = " ".join(f"{index}:{name}" for index, name in enumerate(inputs))
    text = (
        f'--inputs_precisions="{precisions}" --inputs_layouts="0:NC 1:NC" '
        f'--outputs_precisions="0:{output}" --outputs_layouts="0:NC"'
    )
    return f"{text} --config {config}" if config else text


def weighted_sum(factor: float = FACTOR) -> Model:
    """Two inputs and one output of shape 1 x 16, f32: `sum = left + right * factor` (one constant each)."""
    # imported here: runs without models need not pay for it
    import numpy as np
    import openvino as ov
    from openvino import opset15 as ops

    left = ops.parameter([1, COUNT], ov.Type.f32, name=NAMES[0])
    right = ops.parameter([1, COUNT], ov.Type.f32, name=NAMES[1])
    scaled = ops.multiply(right, ops.constant(np.full((1, COUNT), factor, np.float32)))
    total = ops.add(left, scaled, name=NAMES[2])
    for node in (left, right, total):
        node.output(0).get_tensor().set_names({f"{node.get_friendly_name()}:0"})
    result = ops.result(total, name=RESULT)
    return _of(ov.Model([result], [left, right], f"weighted_sum_{factor:g}"), build_flags())


def _of(model: ov.Model, flags: str) -> Model:
    model.set_rt_info("true", "is_new_api")
    model.set_rt_info("true", "use_indices_for_io_metadata")
    return _serialised(model, flags)


def growing_rows(width: int) -> Model:
    """Input x and output y, the sums of all rows of all x so far: the state `rows` grows by x."""
    import openvino as ov
    from openvino import opset6
    from openvino import opset15 as ops

    x = ops.parameter([-1, width], ov.Type.f32, name="x")
    rows = ops.concat([opset6.read_value("rows", ov.Type.f32, ov.PartialShape([-1, width])), x], 0)
    y = ops.reduce_sum(rows, ops.constant([0]), False)
    y.set_friendly_name("y")
    for name, node in (("x", x), ("y", y)):
        node.output(0).set_names({name})
    return _serialised(ov.Model([ops.result(y)], [opset6.assign(rows, "rows")], [x], "growing_rows"), "")


def _serialised(model: Any, flags: str) -> Model:
    import openvino as ov

    with tempfile.TemporaryDirectory(prefix="softnpu-model-") as folder:
        path = Path(folder) / "model.xml"
        ov.serialize(model, path)
        return Model(path.read_bytes(), path.with_suffix(".bin").read_bytes(), flags)


def open_relu(*shapes: str, config: str = "") -> Model:
    """One input for each of these shapes, as OpenVINO writes them, and as many outputs: relu, f32."""
    import openvino as ov
    from openvino import opset15 as ops

    inputs = [
        ops.parameter(ov.PartialShape(f"[{shape}]"), ov.Type.f32, name=f"x{index}")
        for index, shape in enumerate(shapes)
    ]
    model = ov.Model([ops.relu(x) for x in inputs], inputs, "open_relu")
    return _of(model, f"--config {config}" if config else "")


def halves(build_flags: str) -> Model:
    """An input of shape 1 x 2 x 3 x 4, f32, and its two halves on the second axis, one operation."""
    import openvino as ov
    from openvino import opset15 as ops

    picture = ops.parameter([1, 2, 3, 4], ov.Type.f32, name="picture")
    cut = ops.split(picture, ops.constant(1), 2, name="cut")
    results = [ops.result(cut.output(index), name=f"half {index}") for index in range(2)]
    return _of(ov.Model(results, [picture], "halves"), build_flags)


def wide(count: int) -> Model:
    """So many inputs, and as many outputs."""
    import openvino as ov
    from openvino import opset15 as ops

    inputs = [ops.parameter([1, 4], ov.Type.f32, name=f"x{index}") for index in range(count)]
    return _of(ov.Model([ops.relu(x) for x in inputs], inputs, "wide"), "")


def broken() -> Model:
    """Return an invalid XML."""
    return Model(b"<net name='broken'><layers></net>", b"", build_flags())
