"""The layers of a small convolutional network: forward, backward, and as OpenVINO operations.

Only what training the digits needs, in numpy. Values are f32; images are [n, channels, height, width] as in
OpenVINO.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import openvino as ov
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from openvino import opset13 as ops

FloatArray = NDArray[np.float32]


class Layer(Protocol):
    """One step of the network. `gradients` belong to `parameters` and come from the last `backward`."""

    parameters: list[FloatArray]
    gradients: list[FloatArray]

    def forward(self, value: FloatArray) -> FloatArray:
        """Return the output for a batch [n, ...]; keep what `backward` needs."""
        ...

    def backward(self, gradient: FloatArray) -> FloatArray:
        """Map the loss's gradient by the last output to that by the last input, of the input's shape."""
        ...

    def to_openvino(self, value: ov.Node, name: str) -> ov.Node:
        """Return the same computation as graph nodes named after `name`, for any batch size."""
        ...


class Convolution:
    """3x3 convolution with stride 1 and zero padding: [n, inputs, h, w] -> [n, outputs, h, w]."""

    def __init__(self, inputs: int, outputs: int, random: np.random.Generator) -> None:
        self._kernel = _he_normal(random, (outputs, inputs, 3, 3), fan_in=inputs * 9)
        self._bias = np.zeros(outputs, dtype=np.float32)
        self.parameters = [self._kernel, self._bias]
        self.gradients: list[FloatArray] = []
        self._columns: FloatArray = np.empty(0, dtype=np.float32)

    def forward(self, value: FloatArray) -> FloatArray:
        n, _, height, width = value.shape
        padded = np.pad(value, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = sliding_window_view(padded, (3, 3), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
        self._columns = windows.reshape(n * height * width, -1)
        flat = self._columns @ self._kernel.reshape(len(self._bias), -1).T + self._bias
        return flat.reshape(n, height, width, -1).transpose(0, 3, 1, 2)

    def backward(self, gradient: FloatArray) -> FloatArray:
        n, outputs, height, width = gradient.shape
        flat = gradient.transpose(0, 2, 3, 1).reshape(-1, outputs)
        self.gradients = [(flat.T @ self._columns).reshape(self._kernel.shape), flat.sum(axis=0)]
        columns = (flat @ self._kernel.reshape(outputs, -1)).reshape(n, height, width, -1, 3, 3)
        padded = np.zeros((n, columns.shape[3], height + 2, width + 2), dtype=np.float32)
        for row in range(3):
            for column in range(3):
                patch = columns[..., row, column].transpose(0, 3, 1, 2)
                padded[:, :, row : row + height, column : column + width] += patch
        return padded[:, :, 1:-1, 1:-1]

    def to_openvino(self, value: ov.Node, name: str) -> ov.Node:
        kernel = ops.constant(self._kernel, name=f"{name}/kernel")
        product = ops.convolution(value, kernel, [1, 1], [1, 1], [1, 1], [1, 1], name=f"{name}/convolution")
        bias = ops.constant(self._bias.reshape(1, -1, 1, 1), name=f"{name}/bias")
        return ops.add(product, bias, name=name)


class Relu:
    """max(value, 0), any shape."""

    def __init__(self) -> None:
        self.parameters: list[FloatArray] = []
        self.gradients: list[FloatArray] = []
        self._positive: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)

    def forward(self, value: FloatArray) -> FloatArray:
        self._positive = value > 0
        return value * self._positive

    def backward(self, gradient: FloatArray) -> FloatArray:
        passed: FloatArray = gradient * self._positive
        return passed

    def to_openvino(self, value: ov.Node, name: str) -> ov.Node:
        return ops.relu(value, name=name)


class MaxPool:
    """The largest of each 2x2 square: [n, c, h, w] -> [n, c, h / 2, w / 2], for even h and w."""

    def __init__(self) -> None:
        self.parameters: list[FloatArray] = []
        self.gradients: list[FloatArray] = []
        self._shares: FloatArray = np.empty(0, dtype=np.float32)

    def forward(self, value: FloatArray) -> FloatArray:
        n, channels, height, width = value.shape
        squares = value.reshape(n, channels, height // 2, 2, width // 2, 2)
        pooled: FloatArray = squares.max(axis=(3, 5), keepdims=True)
        largest = (squares == pooled).astype(np.float32)
        # Blank squares are all alike: equals share the gradient.
        self._shares = largest / largest.sum(axis=(3, 5), keepdims=True)
        return pooled.reshape(n, channels, height // 2, width // 2)

    def backward(self, gradient: FloatArray) -> FloatArray:
        spread = gradient[:, :, :, None, :, None] * self._shares
        n, channels, height, width = gradient.shape
        return spread.reshape(n, channels, 2 * height, 2 * width)

    def to_openvino(self, value: ov.Node, name: str) -> ov.Node:
        pooled = ops.max_pool(value, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2], name=name)
        return pooled.output(0)


class Dense:
    """value @ weight + bias, every image flattened: [n, ...] -> [n, outputs]."""

    def __init__(self, inputs: int, outputs: int, random: np.random.Generator) -> None:
        self._weight = _he_normal(random, (inputs, outputs), fan_in=inputs)
        self._bias = np.zeros(outputs, dtype=np.float32)
        self.parameters = [self._weight, self._bias]
        self.gradients: list[FloatArray] = []
        self._input: FloatArray = np.empty(0, dtype=np.float32)

    def forward(self, value: FloatArray) -> FloatArray:
        self._input = value
        return value.reshape(len(value), -1) @ self._weight + self._bias

    def backward(self, gradient: FloatArray) -> FloatArray:
        flat = self._input.reshape(len(self._input), -1)
        self.gradients = [flat.T @ gradient, gradient.sum(axis=0)]
        flat_gradient: FloatArray = gradient @ self._weight.T
        return flat_gradient.reshape(self._input.shape)

    def to_openvino(self, value: ov.Node, name: str) -> ov.Node:
        shape = ops.constant(np.array([0, -1], dtype=np.int64), name=f"{name}/shape")
        flat = ops.reshape(value, shape, special_zero=True, name=f"{name}/flatten")
        weight = ops.constant(self._weight, name=f"{name}/weight")
        product = ops.matmul(flat, weight, False, False, name=f"{name}/matmul")
        return ops.add(product, ops.constant(self._bias.reshape(1, -1), name=f"{name}/bias"), name=name)


def _he_normal(random: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> FloatArray:
    """He et al. 2015: keep the variance through layers followed by a relu."""
    values = random.standard_normal(shape).astype(np.float32)
    values *= np.float32(np.sqrt(2.0 / fan_in))
    return values
