"""YOLO26 in five sizes (Ultralytics' model description), 640x640, 80 classes: 300 boxes, selected by TopK."""

from __future__ import annotations

from typing import Final

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.calibration.architectures.yolo import Layers

_SIZES: Final = {
    "n": (0.5, 0.25, 1024),
    "s": (0.5, 0.5, 1024),
    "m": (0.5, 1.0, 512),
    "l": (1.0, 1.0, 512),
    "x": (1.0, 1.5, 512),
}
"""Factors of depth and width, and the most channels before the width counts."""
_BOXES, _CLASSES = 300, 80


class _Layers26(Layers):
    def blocks(
        self,
        source: Source,
        channels: int,
        count: int,
        *,
        nested: bool,
        factor: float = 0.5,
        attends: bool = False,
    ) -> Source:
        """C3k2: bottlenecks, nested ones, or a bottleneck with attention behind it."""
        hidden = int(channels * factor)
        parts = list(self.split(self.block(source, 2 * hidden), hidden, hidden))
        for _ in range(count):
            value = parts[-1]
            if attends:
                value = self.attended(self.bottleneck(value, hidden, factor=0.5), hidden)
            else:
                value = self.c3k(value, hidden) if nested else self.bottleneck(value, hidden, factor=0.5)
            parts.append(value)
        return self.block(self.concat(*parts), channels)

    def attended(self, source: Source, channels: int) -> Source:
        value = self.elementwise("Add", source, self.heads(source, channels, max(channels // 64, 1)))
        return self.elementwise("Add", value, self.convolution(self.block(value, 2 * channels), channels))

    def partial_attention(self, source: Source, channels: int, count: int) -> Source:
        """C2PSA."""
        half = channels // 2
        kept, value = self.split(self.block(source, channels), half, half)
        for _ in range(count):
            value = self.attended(value, half)
        return self.block(self.concat(kept, value), channels)

    def selected(self, levels: list[Source]) -> Source:
        first = self.shape(levels[0])[1]
        narrow, wide = max(16, first // 4), max(first, _CLASSES)
        boxes, scores = [], []
        for each in levels:
            _, _, height, width = self.shape(each)
            box = self.convolution(self.block(self.block(each, narrow, 3), narrow, 3), 4)
            score = self.convolution(self.separable(self.separable(each, wide), wide), _CLASSES)
            boxes.append(self.reshape(box, 1, 4, height * width))
            scores.append(self.reshape(score, 1, _CLASSES, height * width))
        box, score = self.concat(*boxes, axis=2), self.activation(self.concat(*scores, axis=2), "Sigmoid")
        count = self.shape(box)[2]
        box = self.elementwise(
            "Multiply", self.elementwise("Add", box, self.constant(1, 4, count)), self.constant(1)
        )
        box, score = self.transpose(box, 0, 2, 1), self.transpose(score, 0, 2, 1)
        best = self.add("ReduceMax", [score], (1, count))
        index = self.top(best)
        box = self.add("GatherElements", [box, index], (1, _BOXES, 4))
        score = self.add("GatherElements", [score, index], (1, _BOXES, _CLASSES))
        index = self.top(self.reshape(score, 1, _BOXES * _CLASSES))
        return self.add("GatherElements", [box, index], (1, _BOXES, 6))

    def top(self, source: Source) -> Source:
        return self.add("TopK", [source], (1, _BOXES), axis=1)


def yolo26(size: str) -> Graph:
    """2.4 to 55.7 million weights, 2.7 to 97 G MACs."""
    depth, width, most = _SIZES[size]
    nested = size in "mlx"

    def wide(channels: int) -> int:
        return -(-int(min(channels, most) * width) // 8) * 8

    count = max(round(2 * depth), 1)
    net = _Layers26(f"yolo26{size}")
    value = net.block(net.block(net.parameter(1, 3, 640, 640), wide(64), 3, 2), wide(128), 3, 2)
    value = net.block(net.blocks(value, wide(256), count, nested=nested, factor=0.25), wide(256), 3, 2)
    small = net.blocks(value, wide(512), count, nested=nested, factor=0.25)
    middle = net.blocks(net.block(small, wide(512), 3, 2), wide(512), count, nested=True)
    value = net.blocks(net.block(middle, wide(1024), 3, 2), wide(1024), count, nested=True)
    value = net.elementwise("Add", value, net.sppf(value, wide(1024)))
    large = net.partial_attention(value, wide(1024), count)
    up = net.blocks(net.concat(net.twice(large), middle), wide(512), count, nested=True)
    first = net.blocks(net.concat(net.twice(up), small), wide(256), count, nested=True)
    second = net.blocks(net.concat(net.block(first, wide(256), 3, 2), up), wide(512), count, nested=True)
    third = net.blocks(
        net.concat(net.block(second, wide(512), 3, 2), large), wide(1024), 1, nested=True, attends=True
    )
    return net.build(net.selected([first, second, third]))
