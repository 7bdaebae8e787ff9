"""SSD with MobileNet v1 on COCO (TensorFlow object detection, `ssd_mobilenet_v1_coco`), 300x300."""

from __future__ import annotations

from softnpu.emulator.prediction.graph import Graph, Source
from tests.prediction.calibration.architectures.mobilenet import mobilenet_v1_features
from tests.prediction.graph_builder import GraphBuilder

_CLASSES = 91
_EXTRA = ((256, 512), (128, 256), (128, 256), (64, 128))
_BOXES = (3, 6, 6, 6, 6, 6)


def ssd_mobilenet_v1() -> Graph:
    """1917 boxes of 91 classes; the selection of boxes is part of the model."""
    build = GraphBuilder("ssd-mobilenet-v1")
    middle, value = mobilenet_v1_features(build, build.parameter(1, 3, 300, 300))
    maps = [middle, value]
    for narrow, wide in _EXTRA:
        value = build.convolution(value, narrow, 1, activation="Relu6")
        value = build.convolution(value, wide, 3, 2, activation="Relu6")
        maps.append(value)
    boxes = [_flat(build, each, count, 4) for each, count in zip(maps, _BOXES, strict=True)]
    classes = [_flat(build, each, count, _CLASSES) for each, count in zip(maps, _BOXES, strict=True)]
    box, score = build.concat(*boxes), build.activation(build.concat(*classes), "Sigmoid")
    detections = build.add("DetectionOutput", [box, score, build.constant(1, 2, 1917 * 4)], (1, 1, 100, 7))
    return build.build(detections)


def _flat(build: GraphBuilder, source: Source, count: int, values: int) -> Source:
    value = build.transpose(build.convolution(source, count * values, 1), 0, 2, 3, 1)
    size = 1
    for each in build.shape(value):
        size *= each
    return build.reshape(value, 1, size)
