"""Dynamic shapes: one compiled model, tensors of another shape at every inference.

The model finds the places of all non-zero numbers in a matrix of 1 to 8 rows and any number of columns.
The size of its result depends on the numbers: it is unknown before it has been computed.

    python -m softnpu.tools.examples.dynamic_shapes
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from softnpu.plugin import Core, InputError


def main() -> None:
    """Compile once, infer with several shapes, and show rejected ones."""
    matrix = ops.parameter([-1, -1], ov.Type.f32, name="matrix")
    matrix.output(0).set_names({"matrix"})
    places = ops.non_zero(matrix)
    places.output(0).set_names({"places"})
    model = ov.Model([places], [matrix], "places")

    core = Core()
    compiled = core.compile_model(model, "NPU", shapes={"matrix": ["1..8", -1]})
    for port in (*compiled.inputs, *compiled.outputs):
        print(f"{port.any_name}: {port.partial_shape}")

    request = compiled.create_infer_request()
    for rows, columns in ((2, 3), (8, 100), (1, 1)):
        result = request.infer({"matrix": np.eye(rows, columns, dtype=np.float32)})["places"]
        print(f"matrix {rows} x {columns}: {result.shape[1]} places, result {list(result.shape)}")

    # zero-copy: the request's own tensor takes the shape, and the input is written there
    tensor = request.get_tensor("matrix")
    tensor.shape = [3, 5]
    tensor.data[:] = 0
    tensor.data[1, 4] = 7
    request.infer()
    print(f"matrix 3 x 5, in place: {request.get_tensor('places').data.T.tolist()}")

    try:
        request.infer({"matrix": np.ones((9, 2), np.float32)})
    except InputError as error:
        print(f"9 rows: {error}")


if __name__ == "__main__":
    main()
