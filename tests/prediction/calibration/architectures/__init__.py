"""The models behind the published rows, as weightless graphs of the right shapes.

They cannot be downloaded here, and no prediction needs their weights. The architectures are public; every
file cites the description of each one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from softnpu.emulator.prediction.graph import Graph
from tests.prediction.calibration.architectures import (
    bert,
    decoder,
    efficientdet,
    mobilenet,
    resnet,
    ssd,
    yolo,
)

ARCHITECTURES: Final[Mapping[str, Callable[[], Graph]]] = {
    "resnet-50": resnet.resnet50,
    "mobilenet-v2": mobilenet.mobilenet_v2,
    "ssd-mobilenet-v1": ssd.ssd_mobilenet_v1,
    "efficientdet-d0": efficientdet.efficientdet_d0,
    "yolov8n": yolo.yolov8n,
    "yolo11n": yolo.yolo11n,
    "bert-base": bert.bert_base,
    "llama-2-7b": decoder.llama_2_7b,
    "phi-3-mini": decoder.phi_3_mini,
}
"""Every model by the name used in its rows."""


@cache
def architecture(name: str) -> Graph:
    """Return the graph of a model."""
    return ARCHITECTURES[name]()
