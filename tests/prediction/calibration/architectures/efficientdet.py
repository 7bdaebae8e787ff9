"""EfficientDet-D0 (Tan et al., 2020): EfficientNet-B0, three BiFPN layers of 64 channels, two heads."""

from __future__ import annotations

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.graph_builder import GraphBuilder

_BLOCKS = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
_LEVELS = (2, 4, 6)
_WIDTH = 64
_ANCHORS, _CLASSES = 9, 90


def efficientdet_d0() -> Graph:
    """512x512, 49 104 boxes of 90 classes; the selection of boxes is part of the model."""
    build = GraphBuilder("efficientdet-d0")
    value = _swish(build, build.convolution(build.parameter(1, 3, 512, 512), 32, 3, 2))
    features = []
    for stage, (factor, channels, blocks, stride, kernel) in enumerate(_BLOCKS):
        for block in range(blocks):
            value = _block(build, value, factor, channels, stride if block == 0 else 1, kernel)
        if stage in _LEVELS:
            features.append(value)
    levels = [build.convolution(each, _WIDTH, 1) for each in features]
    levels.append(build.pool("MaxPool", build.convolution(features[-1], _WIDTH, 1), 3, 2, 1))
    levels.append(build.pool("MaxPool", levels[-1], 3, 2, 1))
    for _ in range(3):
        levels = _bifpn(build, levels)
    boxes = [_head(build, each, 4) for each in levels]
    classes = [_head(build, each, _CLASSES) for each in levels]
    score = build.activation(build.concat(*classes), "Sigmoid")
    anchors = build.constant(1, 2, 49104 * 4)
    detections = build.add("DetectionOutput", [build.concat(*boxes), score, anchors], (1, 1, 100, 7))
    return build.build(detections)


def _swish(build: GraphBuilder, source: Source) -> Source:
    return build.activation(source, "Swish")


def _block(
    build: GraphBuilder, source: Source, factor: int, channels: int, stride: int, kernel: int
) -> Source:
    inputs = build.shape(source)[1]
    value = source
    if factor != 1:
        value = _swish(build, build.convolution(value, inputs * factor, 1))
    value = _swish(build, build.depthwise(value, kernel, stride))
    gate = _swish(build, build.convolution(build.mean(value), max(inputs // 4, 1), 1))
    gate = build.activation(build.convolution(gate, build.shape(value)[1], 1), "Sigmoid")
    value = build.convolution(build.elementwise("Multiply", value, gate), channels, 1)
    return build.elementwise("Add", source, value) if stride == 1 and inputs == channels else value


def _bifpn(build: GraphBuilder, levels: list[Source]) -> list[Source]:
    down = list(levels)
    for level in range(len(levels) - 2, -1, -1):
        _, _, height, width = build.shape(levels[level])
        larger = build.resize(down[level + 1], height, width)
        down[level] = _node(build, [levels[level], larger])
    up = list(down)
    for level in range(1, len(levels)):
        smaller = build.pool("MaxPool", up[level - 1], 3, 2, 1)
        parts = [levels[level], down[level], smaller] if level < len(levels) - 1 else [levels[level], smaller]
        up[level] = _node(build, parts)
    return up


def _node(build: GraphBuilder, parts: list[Source]) -> Source:
    total = parts[0]
    for each in parts[1:]:
        total = build.elementwise("Add", total, each)
    return build.convolution(build.depthwise(_swish(build, total)), _WIDTH, 1)


def _head(build: GraphBuilder, source: Source, values: int) -> Source:
    value = source
    for _ in range(3):
        value = _swish(build, build.convolution(build.depthwise(value), _WIDTH, 1))
    value = build.convolution(build.depthwise(value), _ANCHORS * values, 1)
    _, channels, height, width = build.shape(value)
    return build.reshape(build.transpose(value, 0, 2, 3, 1), 1, channels * height * width)
