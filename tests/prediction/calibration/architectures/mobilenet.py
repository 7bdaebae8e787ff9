"""MobileNet v1 (Howard et al., 2017, table 1) and v2 (Sandler et al., 2018, table 2)."""

from __future__ import annotations

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.graph_builder import GraphBuilder

_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


def mobilenet_v2() -> Graph:
    """224x224, width 1.0, 1000 classes."""
    build = GraphBuilder("mobilenet-v2")
    value = build.convolution(build.parameter(1, 3, 224, 224), 32, 3, 2, activation="Relu6")
    for factor, channels, blocks, stride in _V2:
        for block in range(blocks):
            value = _inverted_residual(build, value, factor, channels, stride if block == 0 else 1)
    value = build.convolution(value, 1280, 1, activation="Relu6")
    value = build.reshape(build.mean(value), 1, 1280)
    return build.build(build.linear(value, 1000))


def _inverted_residual(
    build: GraphBuilder, source: Source, factor: int, channels: int, stride: int
) -> Source:
    inputs = build.shape(source)[1]
    value = source
    if factor != 1:
        value = build.convolution(value, inputs * factor, 1, activation="Relu6")
    value = build.depthwise(value, 3, stride, activation="Relu6")
    value = build.convolution(value, channels, 1)
    return build.elementwise("Add", source, value) if stride == 1 and inputs == channels else value


def mobilenet_v1_features(build: GraphBuilder, source: Source) -> tuple[Source, Source]:
    """Return the features of SSD: after the eleventh block (stride 16), and the last ones (stride 32)."""
    value = build.convolution(source, 32, 3, 2, activation="Relu6")
    middle = value
    for position, (channels, stride) in enumerate(_V1):
        value = build.depthwise(value, 3, stride, activation="Relu6")
        value = build.convolution(value, channels, 1, activation="Relu6")
        if position == 10:
            middle = value
    return middle, value
