"""Models with weights in every storage format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

SIZE = 256
INPUT = np.random.default_rng(2).random((1, SIZE), np.float32)
_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64"}

Array = npt.NDArray[Any]


def tensors(seed: int = 0) -> dict[str, Array]:
    """The weights of two dense layers, by constant name."""
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((SIZE, SIZE), np.float32) / 8 for name in ("first", "second")}


def dense_model(seed: int = 0) -> ov.Model:
    """Two dense layers of SIZE x SIZE in memory. Names are fixed, so that equal models are equal."""
    data = ops.parameter([1, SIZE], np.float32, name="data")
    value: Any = data
    for name, weights in tensors(seed).items():
        value = ops.matmul(value, ops.constant(weights, name=name), False, True, name=f"{name}_product")
        value = ops.relu(value, name=f"{name}_relu")
    return ov.Model([ops.result(value, name="result")], [data], "dense")


def tensors_of(model: ov.Model) -> dict[str, Array]:
    """The constants of a model by name."""
    return {
        op.friendly_name: op.data.copy() for op in model.get_ordered_ops() if op.get_type_name() == "Constant"
    }


def write_dense(folder: Path, seed: int = 0) -> Path:
    """Write `dense_model` as an IR."""
    path = folder / "dense.xml"
    ov.serialize(dense_model(seed), path)
    return path


def write_safetensors(path: Path, arrays: Mapping[str, Array]) -> Path:
    """Write a safetensors file; its data begins at a multiple of 8, as with the format's own writer."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))
    return path


def write_onnx(folder: Path, external: bool = True, batch: int | str = 1) -> Path:
    """Write `dense_model` as ONNX, with its weights in a separate file."""
    import onnx

    helper = onnx.helper
    nodes, last = [], "data"
    arrays = tensors()
    for name in arrays:
        nodes.append(helper.make_node("MatMul", [last, name], [f"{name}_product"]))
        nodes.append(helper.make_node("Relu", [f"{name}_product"], [f"{name}_relu"]))
        last = f"{name}_relu"
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, [batch, SIZE])],
        [helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, [batch, SIZE])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(array.T), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "dense.onnx"
    onnx.save_model(
        model,
        path,
        save_as_external_data=external,
        all_tensors_to_one_file=True,
        location="dense.onnx.data",
        size_threshold=0,
    )
    return path
