"""Batched models for tests, and their results on OpenVINO's CPU device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

Array = npt.NDArray[Any]
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def parameter(name: str, shape: Sequence[Any], layout: str = "", kind: Any = ov.Type.f32) -> Any:
    """Return an input with a tensor name, and a layout if one is given."""
    node = ops.parameter(ov.PartialShape(list(shape)), kind, name=name)
    node.output(0).set_names({name})
    if layout:
        node.set_layout(ov.Layout(layout))
    return node


def model_of(results: Any, *inputs: Any, name: str = "batched") -> ov.Model:
    """Return a model whose outputs are named `y` or `y0`, `y1`, ..."""
    nodes = results if isinstance(results, list) else [results]
    outputs = [node.output(0) if hasattr(node, "output") else node for node in nodes]
    for number, output in enumerate(outputs):
        output.get_tensor().set_names({"y" if len(outputs) == 1 else f"y{number}"})
    return ov.Model([ops.result(output) for output in outputs], list(inputs), name)


def weights(*shape: int, seed: int = 1) -> Array:
    """Return numbers for constants."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv_net(batch: Any = -1, layout: str = "NCHW") -> ov.Model:
    """[N,3,8,8] to [N,5]: convolution, ReLU, mean over the picture, matrix product, softmax."""
    x = parameter("x", [batch, 3, 8, 8], layout)
    conv = ops.convolution(x, ops.constant(weights(4, 3, 3, 3)), [1, 1], [1, 1], [1, 1], [1, 1])
    mean = ops.reduce_mean(ops.relu(conv), ops.constant([2, 3]), False)
    dense = ops.matmul(mean, ops.constant(weights(4, 5)), False, False)
    return model_of(ops.softmax(dense, 1), x)


def matmul_net(batch: Any = -1, layout: str = "NC") -> ov.Model:
    """[N,6] to [N,4]: two matrix products."""
    x = parameter("x", [batch, 6], layout)
    hidden = ops.tanh(ops.matmul(x, ops.constant(weights(6, 8)), False, False))
    return model_of(ops.matmul(hidden, ops.constant(weights(8, 4)), False, False), x)


def columns_net(batch: Any = -1) -> ov.Model:
    """Samples on axis 1, layout CN: [6,N] to [4,N]."""
    x = parameter("x", [6, batch], "CN")
    return model_of(ops.tanh(ops.matmul(ops.constant(weights(4, 6)), x, False, False)), x)


def random(*shape: int, seed: int = 5) -> Array:
    """Return input data."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_cpu(model: ov.Model, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of OpenVINO's CPU device for the batch size of the inputs."""
    clone = model.clone()
    clone.reshape({index: ov.PartialShape(list(array.shape)) for index, array in enumerate(inputs)})
    compiled = ov.Core().compile_model(clone, "CPU", F32)
    request = compiled.create_infer_request()
    found = request.infer(list(inputs))
    return [np.array(found[output]) for output in compiled.outputs]


def same(found: Any, expected: Sequence[Array]) -> None:
    """Assert that the numbers differ by rounding at most: a large batch may be summed in another order."""
    for index, array in enumerate(expected):
        np.testing.assert_allclose(found[index], array, rtol=1e-4, atol=1e-5)
