"""ResNet-50 (He et al., 2015, table 1; stride in the 3x3 convolution as in common implementations)."""

from __future__ import annotations

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.graph_builder import GraphBuilder

_STAGES = ((64, 256, 3, 1), (128, 512, 4, 2), (256, 1024, 6, 2), (512, 2048, 3, 2))


def resnet50() -> Graph:
    """224x224, 1000 classes."""
    build = GraphBuilder("resnet-50")
    value = build.convolution(build.parameter(1, 3, 224, 224), 64, 7, 2, activation="Relu")
    value = build.pool("MaxPool", value, 3, 2, 0)
    for narrow, wide, blocks, stride in _STAGES:
        for block in range(blocks):
            value = _bottleneck(build, value, narrow, wide, stride if block == 0 else 1)
    value = build.reshape(build.mean(value), 1, 2048)
    return build.build(build.linear(value, 1000))


def _bottleneck(build: GraphBuilder, source: Source, narrow: int, wide: int, stride: int) -> Source:
    shortcut = source
    if stride != 1 or build.shape(source)[1] != wide:
        shortcut = build.convolution(source, wide, 1, stride)
    value = build.convolution(source, narrow, 1, activation="Relu")
    value = build.convolution(value, narrow, 3, stride, activation="Relu")
    value = build.convolution(value, wide, 1)
    return build.activation(build.elementwise("Add", value, shortcut), "Relu")
