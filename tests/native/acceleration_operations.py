"""What the library's own tests try of single operations, with the same sizes and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from intel_npu_acceleration_library.backend import MLP, MatMul, NNFactory, QMatMul
from intel_npu_acceleration_library.quantization import quantize_tensor
from torch.nn import functional

from tests.native.acceleration_library import close, group

HALF = torch.float16
CHANNELS = (512, 768, 1024, 2048)
BATCHES = (16, 128, 512, 1024)
SMALL = {"batch": (16, 128), "hidden": (256, 512)}
LAYER = {"batch": (16, 128), "inner": (256, 512), "outer": (256, 512)}
IMAGES = {"channels": (16, 128), "size": (16, 32), "kernel": (1, 2, (2, 2), (4, 4)), "stride": (1, 2)}


def centred(*shape: int) -> Any:
    """Return random halves from -0.5 to 0.5."""
    return torch.rand(shape).to(HALF) - 0.5


def through(function: Any, *inputs: Any, bound: float, check: Any = None) -> None:
    """Compare a function of tensors, recorded by the library, with PyTorch's result."""
    reference = (check or function)(*inputs).detach().numpy()
    model = NNFactory()
    parameters = [model.parameter(list(each.shape), np.float16) for each in inputs]
    found = function(*parameters)
    model.compile()
    assert list(found.shape) == list(reference.shape), f"shape {found.shape} instead of {reference.shape}"
    close(reference, model.run(*(each.numpy() for each in inputs)), bound)


@group(batch=BATCHES, inner=CHANNELS, outer=CHANNELS)
def matmul(batch: int, inner: int, outer: int) -> None:
    x, w = torch.rand(batch, inner).to(HALF), torch.rand(outer, inner).to(HALF)
    close(x @ w.T, MatMul(inner, outer, batch).run(x.numpy(), w.numpy()), 0.001)


@group(batch=BATCHES, inner=CHANNELS, outer=CHANNELS)
def qmatmul_per_channel_scales(batch: int, inner: int, outer: int) -> None:
    x, w = centred(batch, inner), torch.rand(outer, inner).to(HALF)
    quantized, scale = quantize_tensor(w)
    assert scale.shape == (outer, 1)
    assert (scale.dtype, quantized.dtype) == (HALF, torch.int8)
    adapted = scale * np.sqrt(inner)
    found = QMatMul(inner, outer, batch).run(x.numpy(), quantized.numpy(), adapted.numpy())
    close(x @ w.T, found, 0.001)


MLPS: dict[str, Any] = {
    "ceiling": torch.ceil,
    "clamp": lambda x: torch.clamp(x, -1.0, 1.0),
    "elu": functional.elu,
    "grn": lambda x: functional.normalize(x, p=2.0, dim=-1, eps=1e-12),
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "negative": torch.neg,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "hswish": functional.hardswish,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "hsigmoid": functional.hardsigmoid,
    "swiglu": functional.silu,
}


@group(**SMALL, intermediate=(512, 256), bias=(False, True), alpha=(1.0, 0.5), activation=tuple(MLPS))
def mlp(batch: int, hidden: int, intermediate: int, bias: bool, alpha: float, activation: str) -> None:
    names = ("first", "second") if activation == "swiglu" else ("first",)
    layers = [torch.nn.Linear(hidden, intermediate, bias=bias).half() for _ in names]
    layers.append(torch.nn.Linear(intermediate, hidden, bias=bias).half())
    x = centred(batch, hidden)
    with torch.no_grad():
        first = layers[0](x)
        y = functional.elu(first, alpha=alpha) if activation == "elu" else MLPS[activation](first)
        reference = layers[-1](y * layers[1](x) if activation == "swiglu" else y).numpy()
    model = MLP(
        (batch, hidden), intermediate, activation, bias, min=-1.0, max=1.0, grn_bias=1e-12, alpha=alpha
    )
    weights = [each.detach().numpy() for layer in layers for each in layer.parameters()]
    close(reference, model.run(x.numpy(), *weights, op_id="000"), 0.001)


UNARY = (
    *(
        "log",
        "tanh",
        "sqrt",
        "abs",
        "acos",
        "asin",
        "atan",
        "cos",
        "cosh",
        "erf",
        "exp",
        "floor",
        "sin",
        "sinh",
    ),
    *("tan", "acosh", "asinh", "atanh", "round", "sign"),
)


def _in_domain(activation: str, batch: int, hidden: int) -> Any:
    return centred(batch, hidden) + {"acosh": 1.5, "sqrt": 0.5, "tanh": 0.5, "log": 1}.get(activation, 0)


@group(**SMALL, activation=UNARY)
def activation_of_the_factory(batch: int, hidden: int, activation: str) -> None:
    x = _in_domain(activation, batch, hidden)
    model = NNFactory()
    getattr(model, activation)(model.parameter(list(x.shape)))
    model.compile()
    close(getattr(torch, activation)(x), model.run(x.numpy()), 0.001)


@group(**SMALL, activation=(*UNARY, "ceil", "neg"))
def activation_of_torch(batch: int, hidden: int, activation: str) -> None:
    through(getattr(torch, activation), _in_domain(activation, batch, hidden), bound=0.001)


@group(lambda low, high, **_: (low, high) != (None, None), **SMALL, low=(-1, -0.5, None), high=(1, 0.5, None))
def clamp(batch: int, hidden: int, low: float | None, high: float | None) -> None:
    through(lambda x: torch.clamp(x, low, high), centred(batch, hidden), bound=0.001)


@group(
    **SMALL,
    activation=("elu", "gelu", "relu", "sigmoid", "hardswish", "mish", "softplus", "hardsigmoid", "silu"),
)
def functional_activation(batch: int, hidden: int, activation: str) -> None:
    ways = [{"approximate": "none"}, {"approximate": "tanh"}] if activation == "gelu" else [{}]
    for way in ways:
        through(
            lambda x, way=way: getattr(functional, activation)(x, **way), centred(batch, hidden), bound=0.001
        )


@group(**SMALL)
def data_movement(batch: int, hidden: int) -> None:
    data = centred(1, batch, hidden).numpy()
    for name, argument, shape in (
        ("reshape", [[1, hidden, 1, batch]], (1, hidden, 1, batch)),
        ("transpose", [[0, 3, 1, 2]], (1, batch, hidden, 1)),
        ("squeeze", [], (batch, hidden)),
        ("unsqueeze", [-1], (batch, hidden, 1)),
        ("reshape", [[1, -1]], (1, batch * hidden)),
    ):
        model = NNFactory()
        getattr(model, name)(model.parameter(list(data.shape)), *argument)
        model.compile()
        data = model.run(data)
        assert data.shape == shape, f"{name}: {data.shape} instead of {shape}"


@group(**SMALL)
def constant(batch: int, hidden: int) -> None:
    data = np.random.default_rng(1).random((batch, hidden)).astype(np.float16)
    x = centred(batch, hidden).numpy()
    model = NNFactory()
    model.eltwise_add(model.constant(data), model.parameter(list(x.shape)))
    model.compile()
    close(data + x, model.run(x), 0.001)


@group(**SMALL, start=(0, 1), end=(-1,))
def flatten(batch: int, hidden: int, start: int, end: int) -> None:
    through(lambda x: torch.flatten(x, start, end), torch.rand(batch, hidden).to(HALF), bound=0.01)


@group(channels=(16, 128), size=(4, 16), kind=("avg", "max"), target=((1, 1), (2, 2), (4, 4)))
def adaptive_pooling(channels: int, size: int, kind: str, target: tuple[int, int]) -> None:
    pool = getattr(functional, f"adaptive_{kind}_pool2d")
    through(lambda x: pool(x, target), torch.rand(1, channels, size, size).to(HALF), bound=0.01)


@group(
    lambda kernel, stride, **_: kernel != 1 or stride == 1, **IMAGES, ceil=(False, True), count=(False, True)
)
def avg_pooling(channels: int, size: int, kernel: Any, stride: int, ceil: bool, count: bool) -> None:
    x = torch.rand(1, channels, size, size).to(HALF)
    through(lambda x: functional.avg_pool2d(x, kernel, stride, 0, ceil, count), x, bound=0.01)


@group(lambda kernel, stride, **_: kernel != 1 or stride == 1, **IMAGES, ceil=(False, True))
def max_pooling(channels: int, size: int, kernel: Any, stride: int, ceil: bool) -> None:
    x = torch.rand(1, channels, size, size).to(HALF)
    through(lambda x: functional.max_pool2d(x, kernel, stride, 0, 1, ceil), x, bound=0.01)


@group(
    shape=((1, 3, 16, 16), (1, 16, 32, 32), (1, 64, 16, 16), (1, 128, 256)),
    operation=("add", "sub", "mul", "div"),
    broadcast=(False, True),
)
def operations(shape: tuple[int, ...], operation: str, broadcast: bool) -> None:
    x, y = torch.rand(shape).to(HALF), torch.rand(shape[0] if broadcast else shape).to(HALF)
    if operation == "div":
        y[y == 0] = 1
        y *= 10
    through(lambda x: getattr(torch, operation)(x, y), x, bound=0.01)


@group(
    shape=((1, 16, 16, 16), (1, 16, 32, 32), (1, 64, 16, 16)),
    mean=(0, 10, 120),
    variance=(1, 1.3),
    weight=(False, True),
    bias=(False, True),
)
def batch_norm(shape: tuple[int, ...], mean: float, variance: float, weight: bool, bias: bool) -> None:
    count = shape[1]
    w, b = (torch.rand(count).to(HALF) if wanted else None for wanted in (weight, bias))
    m, v = (torch.full((count,), value, dtype=HALF) for value in (mean, variance))
    x = torch.rand(shape).to(HALF) * 10 + 3
    through(lambda x: functional.batch_norm(x, m, v, weight=w, bias=b), x, bound=0.01)


@group(
    lambda inner, outer, stride, padding, depthwise, **_: (
        (not depthwise or inner == outer) and (padding != "same" or stride == 1)
    ),
    inner=(32, 128, 256),
    outer=(32, 128, 256),
    kernel=(1, 3),
    size=(16, 32),
    bias=(True, False),
    stride=(1, 2),
    padding=(0, 1, "same", "valid"),
    depthwise=(False, True),
)
def convolution(
    inner: int, outer: int, kernel: int, size: int, bias: bool, stride: int, padding: Any, depthwise: bool
) -> None:
    groups = inner if depthwise else 1
    weight = torch.rand(outer, inner // groups, kernel, kernel).to(HALF)
    added = torch.rand(outer).to(HALF) if bias else None
    x = torch.rand(1, inner, size, size).to(HALF)
    through(lambda x: functional.conv2d(x, weight, added, stride, padding, groups=groups), x, bound=0.01)
