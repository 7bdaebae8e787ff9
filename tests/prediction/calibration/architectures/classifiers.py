"""Classifiers of 224x224 pictures as `timm` and torchvision define them, exported to ONNX: 1000 classes.

Blocks are written as in timm: kernel, stride, expansion, channels, blocks, and whether channels are gated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.graph_builder import GraphBuilder

_Block = tuple[int, int, float, int, int, bool]
_V2: Final[tuple[_Block, ...]] = (
    (3, 1, 1, 16, 1, False),
    (3, 2, 6, 24, 2, False),
    (3, 2, 6, 32, 3, False),
    (3, 2, 6, 64, 4, False),
    (3, 1, 6, 96, 3, False),
    (3, 2, 6, 160, 3, False),
    (3, 1, 6, 320, 1, False),
)
_MNASNET: Final[tuple[_Block, ...]] = (
    (3, 1, 1, 16, 1, False),
    (3, 2, 6, 24, 2, False),
    (5, 2, 3, 40, 3, True),
    (3, 2, 6, 80, 4, False),
    (3, 1, 6, 112, 2, True),
    (5, 2, 6, 160, 3, True),
    (3, 1, 6, 320, 1, False),
)
_EFFICIENTNET: Final[tuple[_Block, ...]] = (
    (3, 1, 1, 16, 1, True),
    (3, 2, 6, 24, 2, True),
    (5, 2, 6, 40, 2, True),
    (3, 2, 6, 80, 3, True),
    (5, 1, 6, 112, 3, True),
    (5, 2, 6, 192, 4, True),
    (3, 1, 6, 320, 1, True),
)
_LARGE: Final[tuple[_Block, ...]] = (
    (3, 1, 1, 16, 1, False),
    (3, 2, 4, 24, 1, False),
    (3, 1, 3, 24, 1, False),
    (5, 2, 3, 40, 3, True),
    (3, 2, 6, 80, 1, False),
    (3, 1, 2.5, 80, 1, False),
    (3, 1, 2.3, 80, 2, False),
    (3, 1, 6, 112, 2, True),
    (5, 2, 6, 160, 3, True),
)
_SMALL: Final[tuple[_Block, ...]] = (
    (3, 2, 1, 16, 1, True),
    (3, 2, 4.5, 24, 1, False),
    (3, 1, 3.67, 24, 1, False),
    (5, 2, 4, 40, 1, True),
    (5, 1, 6, 40, 2, True),
    (5, 1, 3, 48, 2, True),
    (5, 2, 6, 96, 3, True),
)
_Activation = Callable[[GraphBuilder, Source], Source]


def _relu(build: GraphBuilder, source: Source) -> Source:
    return build.activation(source, "Relu")


def _relu6(build: GraphBuilder, source: Source) -> Source:
    return build.activation(source, "Relu6")


def _hswish(build: GraphBuilder, source: Source) -> Source:
    return build.activation(source, "HSwish")


def _swish(build: GraphBuilder, source: Source) -> Source:
    """ONNX has no Swish: NNCF quantises both factors."""
    return build.elementwise("Multiply", source, build.activation(source, "Sigmoid"))


def _rounded(channels: float) -> int:
    """Round to a multiple of 8, losing at most a tenth."""
    whole = max(8, int(channels + 4) // 8 * 8)
    return whole + 8 if whole < 0.9 * channels else whole


def _start(name: str) -> tuple[GraphBuilder, Source]:
    build = GraphBuilder(name)
    return build, build.parameter(1, 3, 224, 224)


def _classified(build: GraphBuilder, source: Source) -> Graph:
    value = build.reshape(build.mean(source), 1, build.shape(source)[1])
    return build.build(build.linear(value, 1000))


def _gated(build: GraphBuilder, source: Source, narrow: int, act: _Activation, gate: str) -> Source:
    """Scale each channel by a gate computed from the means of all."""
    value = act(build, build.convolution(build.mean(source), narrow, 1))
    value = build.activation(build.convolution(value, build.shape(source)[1], 1), gate)
    return build.elementwise("Multiply", source, value)


def _mobile(
    build: GraphBuilder,
    source: Source,
    blocks: Sequence[_Block],
    act: Callable[[int], _Activation],
    *,
    width: float = 1.0,
    depth: float = 1.0,
    gate: str = "Sigmoid",
    gates_expanded: bool = False,
) -> Source:
    """Add inverted bottlenecks; `act` is the activation by the position of the block."""
    value = source
    for number, (kernel, stride, factor, channels, count, gated) in enumerate(blocks):
        many = ceil(count * depth) if 0 < number < len(blocks) - 1 else count
        for position in range(many):
            value = _inverted(
                build,
                value,
                kernel,
                stride if position == 0 else 1,
                factor,
                _rounded(channels * width),
                act(number),
                gated,
                gate,
                gates_expanded,
            )
    return value


def _inverted(
    build: GraphBuilder,
    source: Source,
    kernel: int,
    stride: int,
    factor: float,
    channels: int,
    act: _Activation,
    gated: bool,
    gate: str,
    gates_expanded: bool,
) -> Source:
    inputs = build.shape(source)[1]
    wide = _rounded(inputs * factor)
    value = source if factor == 1 else act(build, build.convolution(source, wide, 1))
    value = act(build, build.depthwise(value, kernel, stride))
    if gated:
        narrow = _rounded(build.shape(value)[1] / 4) if gates_expanded else max(inputs // 4, 1)
        value = _gated(build, value, narrow, _relu if gates_expanded else act, gate)
    value = build.convolution(value, channels, 1)
    return build.elementwise("Add", source, value) if stride == 1 and inputs == channels else value


def mobilenetv2(name: str, width: float, depth: float = 1.0) -> Graph:
    """Width 0.5 and 1.0; 1.1 with a depth of 1.2 keeps stem and head."""
    build, image = _start(name)
    stem = 32 if depth > 1 else _rounded(32 * width)
    value = _relu6(build, build.convolution(image, stem, 3, 2))
    value = _mobile(build, value, _V2, lambda _: _relu6, width=width, depth=depth)
    return _classified(build, _relu6(build, build.convolution(value, 1280, 1)))


def mnasnet_a1() -> Graph:
    """3.9 million weights."""
    build, image = _start("mnasnet-a1")
    value = _relu(build, build.convolution(image, 32, 3, 2))
    value = _mobile(build, value, _MNASNET, lambda _: _relu)
    return _classified(build, _relu(build, build.convolution(value, 1280, 1)))


def efficientnet_b0() -> Graph:
    """5.3 million weights; a Swish behind every convolution."""
    build, image = _start("efficientnet-b0")
    value = _swish(build, build.convolution(image, 32, 3, 2))
    value = _mobile(build, value, _EFFICIENTNET, lambda _: _swish)
    return _classified(build, _swish(build, build.convolution(value, 1280, 1)))


def _mobilenetv3(
    name: str, blocks: Sequence[_Block], first: int, head: int, width: float, stem: int
) -> Graph:
    """The blocks before `first` have Relu, the others HSwish."""
    build, image = _start(name)
    value = _hswish(build, build.convolution(image, stem, 3, 2))
    value = _mobile(
        build,
        value,
        blocks,
        lambda number: _hswish if number >= first else _relu,
        width=width,
        gate="HSigmoid",
        gates_expanded=True,
    )
    value = _hswish(build, build.convolution(value, build.shape(value)[1] * 6, 1))
    value = _hswish(build, build.convolution(build.mean(value), head, 1))
    return build.build(build.linear(build.reshape(value, 1, head), 1000))


def mobilenetv3_large() -> Graph:
    """5.5 million weights."""
    return _mobilenetv3("mobilenetv3-large", _LARGE, 4, 1280, 1.0, 16)


def mobilenetv3_small_050() -> Graph:
    """1.6 million weights."""
    return _mobilenetv3("mobilenetv3-small-050", _SMALL, 3, 1024, 0.5, 16)


def resnet18() -> Graph:
    """11.7 million weights."""
    build, image = _start("resnet-18")
    value = build.pool("MaxPool", build.convolution(image, 64, 7, 2, activation="Relu"), 3, 2, 0)
    for channels, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            shortcut = (
                value if build.shape(value)[1] == channels else build.convolution(value, channels, 1, stride)
            )
            inner = build.convolution(value, channels, 3, stride, activation="Relu")
            value = build.activation(
                build.elementwise("Add", build.convolution(inner, channels, 3), shortcut), "Relu"
            )
    return _classified(build, value)


def vgg13() -> Graph:
    """133 million weights, most of them in the product behind the last picture, here a 7x7 convolution."""
    build, value = _start("vgg13")
    for channels in (64, 128, 256, 512, 512):
        for _ in range(2):
            value = build.convolution(value, channels, 3, activation="Relu")
        value = build.pool("MaxPool", value, 2, 2)
    value = build.convolution(value, 4096, 7, padding=0, activation="Relu")
    return _classified(build, build.convolution(value, 4096, 1, activation="Relu"))


def repvgg_b0() -> Graph:
    """15.8 million weights: each block adds a 3x3 and a 1x1 convolution, and its scaled input."""
    build, value = _start("repvgg-b0")
    for channels, count in ((64, 1), (64, 4), (128, 6), (256, 16), (1280, 1)):
        for position in range(count):
            stride = 2 if position == 0 else 1
            total = build.elementwise(
                "Add",
                build.convolution(value, channels, 3, stride),
                build.convolution(value, channels, 1, stride),
            )
            if stride == 1:
                scaled = build.elementwise("Multiply", value, build.constant(1, channels, 1, 1))
                scaled = build.elementwise("Add", scaled, build.constant(1, channels, 1, 1))
                total = build.elementwise("Add", total, scaled)
            value = build.activation(total, "Relu")
    return _classified(build, value)


def vovnet19b_dw() -> Graph:
    """6.5 million weights: one aggregation of depthwise convolutions a stage."""
    build, image = _start("ese-vovnet19b-dw")
    value = build.convolution(image, 64, 3, 2, activation="Relu")
    for stride in (1, 2):
        value = build.convolution(build.depthwise(value, 3, stride), 64, 1, activation="Relu")
    for narrow, wide in ((128, 256), (160, 512), (192, 768), (224, 1024)):
        if wide > 256:
            value = build.pool("MaxPool", value, 3, 2, 0)
        parts = [value]
        value = build.convolution(value, narrow, 1, activation="Relu")
        for _ in range(3):
            value = build.convolution(build.depthwise(value), narrow, 1, activation="Relu")
            parts.append(value)
        value = build.convolution(build.concat(*parts), wide, 1, activation="Relu")
        gate = build.activation(build.convolution(build.mean(value), wide, 1), "HSigmoid")
        value = build.elementwise("Multiply", value, gate)
    return _classified(build, value)


def shufflenet_v2() -> Graph:
    """2.3 million weights: halves of the channels, shuffled by a transposition after each block."""
    build, image = _start("shufflenet-v2")
    value = build.pool("MaxPool", build.convolution(image, 24, 3, 2, activation="Relu"), 3, 2, 0)
    for channels, count in ((116, 4), (232, 8), (464, 4)):
        for position in range(count):
            value = _shuffled(build, value, channels // 2, first=position == 0)
    return _classified(build, build.convolution(value, 1024, 1, activation="Relu"))


def _shuffled(build: GraphBuilder, source: Source, half: int, *, first: bool) -> Source:
    if first:
        left = build.convolution(build.depthwise(source, 3, 2), half, 1, activation="Relu")
        right = source
    else:
        left, right = build.split(source, half, half)
    right = build.convolution(right, half, 1, activation="Relu")
    right = build.convolution(build.depthwise(right, 3, 2 if first else 1), half, 1, activation="Relu")
    both = build.concat(left, right)
    _, channels, height, width = build.shape(both)
    apart = build.transpose(build.reshape(both, 1, 2, half, height, width), 0, 2, 1, 3, 4)
    return build.reshape(apart, 1, channels, height, width)
