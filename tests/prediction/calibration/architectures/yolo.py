"""YOLOv8n and YOLO11n (Ultralytics' model descriptions), 640x640, 80 classes, with the decoding of boxes."""

from __future__ import annotations

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.graph_builder import GraphBuilder

_BINS = 16
_CLASSES = 80


class Layers(GraphBuilder):
    def block(
        self, source: Source, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> Source:
        value = self.convolution(source, channels, kernel, stride, groups=groups)
        return self.activation(value, "Swish")

    def separable(self, source: Source, channels: int) -> Source:
        inputs = self.shape(source)[1]
        return self.block(self.block(source, inputs, 3, groups=inputs), channels)

    def bottleneck(
        self, source: Source, channels: int, *, shortcut: bool = True, factor: float = 1.0
    ) -> Source:
        value = self.block(self.block(source, int(channels * factor), 3), channels, 3)
        return self.elementwise("Add", source, value) if shortcut else value

    def c2f(self, source: Source, channels: int, count: int, *, shortcut: bool) -> Source:
        half = channels // 2
        parts = list(self.split(self.block(source, channels), half, half))
        for _ in range(count):
            parts.append(self.bottleneck(parts[-1], half, shortcut=shortcut))
        return self.block(self.concat(*parts), channels)

    def c3k2(self, source: Source, channels: int, hidden: int, *, nested: bool) -> Source:
        parts = list(self.split(self.block(source, 2 * hidden), hidden, hidden))
        parts.append(
            self.c3k(parts[-1], hidden) if nested else self.bottleneck(parts[-1], hidden, factor=0.5)
        )
        return self.block(self.concat(*parts), channels)

    def c3k(self, source: Source, channels: int) -> Source:
        half = channels // 2
        value = self.block(source, half)
        for _ in range(2):
            value = self.bottleneck(value, half)
        return self.block(self.concat(value, self.block(source, half)), channels)

    def sppf(self, source: Source, channels: int) -> Source:
        parts = [self.block(source, channels // 2)]
        for _ in range(3):
            parts.append(self.pool("MaxPool", parts[-1], 5, 1, 2))
        return self.block(self.concat(*parts), channels)

    def attention(self, source: Source, channels: int) -> Source:
        """C2PSA: half of the channels pass through two-head attention over all positions."""
        half = channels // 2
        kept, value = self.split(self.block(source, channels), half, half)
        value = self.elementwise("Add", value, self.heads(value, half, 2))
        value = self.elementwise("Add", value, self.convolution(self.block(value, 2 * half), half))
        return self.block(self.concat(kept, value), channels)

    def heads(self, source: Source, channels: int, heads: int) -> Source:
        _, _, height, width = self.shape(source)
        size, keys = channels // heads, channels // heads // 2
        mixed = self.reshape(
            self.convolution(source, channels * 2), 1, heads, 2 * keys + size, height * width
        )
        query, key, value = self.split(mixed, keys, keys, size, axis=2)
        scores = self.matmul(self.transpose(query, 0, 1, 3, 2), key)
        weights = self.add("Softmax", [scores], self.shape(scores), axis=3)
        out = self.matmul(value, self.transpose(weights, 0, 1, 3, 2))
        position = self.depthwise(self.reshape(value, 1, channels, height, width))
        out = self.elementwise("Add", self.reshape(out, 1, channels, height, width), position)
        return self.convolution(out, channels)

    def twice(self, source: Source) -> Source:
        _, _, height, width = self.shape(source)
        return self.resize(source, 2 * height, 2 * width)

    def detect(self, levels: list[Source], *, separable: bool) -> Source:
        """Return boxes as distributions over 16 bins, and classes, both concatenated over all levels."""
        narrow, wide = max(16, self.shape(levels[0])[1] // 4, 4 * _BINS), max(self.shape(levels[0])[1], 80)
        flat = []
        for each in levels:
            box = self.block(self.block(each, narrow, 3), narrow, 3)
            if separable:
                score = self.separable(self.separable(each, wide), wide)
            else:
                score = self.block(self.block(each, wide, 3), wide, 3)
            both = self.concat(self.convolution(box, 4 * _BINS), self.convolution(score, _CLASSES))
            _, channels, height, width = self.shape(both)
            flat.append(self.reshape(both, 1, channels, height * width))
        boxes, scores = self.split(self.concat(*flat, axis=2), 4 * _BINS, _CLASSES)
        return self.concat(self._decode(boxes), self.activation(scores, "Sigmoid"))

    def _decode(self, boxes: Source) -> Source:
        count = self.shape(boxes)[2]
        value = self.transpose(self.reshape(boxes, 1, 4, _BINS, count), 0, 2, 1, 3)
        value = self.add("Softmax", [value], self.shape(value), axis=1)
        value = self.reshape(self.convolution(value, 1, bias=False), 1, 4, count)
        first, second = self.split(value, 2, 2)
        corner = self.elementwise("Subtract", self.constant(1, 2, count), first)
        other = self.elementwise("Add", self.constant(1, 2, count), second)
        size = self.elementwise("Subtract", other, corner)
        centre = self.elementwise("Multiply", self.elementwise("Add", corner, other), self.constant(1))
        return self.elementwise("Multiply", self.concat(centre, size), self.constant(1, 1, count))


def yolov8n() -> Graph:
    """3.2 million weights, 4.4 G MACs."""
    net = Layers("yolov8n")
    value = net.block(net.block(net.parameter(1, 3, 640, 640), 16, 3, 2), 32, 3, 2)
    value = net.block(net.c2f(value, 32, 1, shortcut=True), 64, 3, 2)
    small = net.c2f(value, 64, 2, shortcut=True)
    middle = net.c2f(net.block(small, 128, 3, 2), 128, 2, shortcut=True)
    large = net.sppf(net.c2f(net.block(middle, 256, 3, 2), 256, 1, shortcut=True), 256)
    up = net.c2f(net.concat(net.twice(large), middle), 128, 1, shortcut=False)
    first = net.c2f(net.concat(net.twice(up), small), 64, 1, shortcut=False)
    second = net.c2f(net.concat(net.block(first, 64, 3, 2), up), 128, 1, shortcut=False)
    third = net.c2f(net.concat(net.block(second, 128, 3, 2), large), 256, 1, shortcut=False)
    return net.build(net.detect([first, second, third], separable=False))


def yolo11n() -> Graph:
    """2.6 million weights, 3.3 G MACs."""
    net = Layers("yolo11n")
    value = net.block(net.block(net.parameter(1, 3, 640, 640), 16, 3, 2), 32, 3, 2)
    value = net.block(net.c3k2(value, 64, 16, nested=False), 64, 3, 2)
    small = net.c3k2(value, 128, 32, nested=False)
    middle = net.c3k2(net.block(small, 128, 3, 2), 128, 64, nested=True)
    value = net.sppf(net.c3k2(net.block(middle, 256, 3, 2), 256, 128, nested=True), 256)
    large = net.attention(value, 256)
    up = net.c3k2(net.concat(net.twice(large), middle), 128, 64, nested=False)
    first = net.c3k2(net.concat(net.twice(up), small), 64, 32, nested=False)
    second = net.c3k2(net.concat(net.block(first, 64, 3, 2), up), 128, 64, nested=False)
    third = net.c3k2(net.concat(net.block(second, 128, 3, 2), large), 256, 128, nested=True)
    return net.build(net.detect([first, second, third], separable=True))
