"""The models behind the published rows, as weightless graphs of the right shapes.

They cannot be downloaded here, and no prediction needs their weights. The architectures are public; every
file cites the description of each one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from softnpu.emulator.prediction.graph import Graph
from tests.prediction.calibration.architectures import (
    bert,
    classifiers,
    decoder,
    efficientdet,
    mobilenet,
    resnet,
    ssd,
    yolo,
    yolo26,
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
    "efficientnet-b0": classifiers.efficientnet_b0,
    "ese-vovnet19b-dw": classifiers.vovnet19b_dw,
    "mnasnet-a1": classifiers.mnasnet_a1,
    "mobilenetv2-050": partial(classifiers.mobilenetv2, "mobilenetv2-050", 0.5),
    "mobilenetv2-100": partial(classifiers.mobilenetv2, "mobilenetv2-100", 1.0),
    "mobilenetv2-110d": partial(classifiers.mobilenetv2, "mobilenetv2-110d", 1.1, 1.2),
    "mobilenetv3-large": classifiers.mobilenetv3_large,
    "mobilenetv3-small-050": classifiers.mobilenetv3_small_050,
    "repvgg-b0": classifiers.repvgg_b0,
    "resnet-18": classifiers.resnet18,
    "shufflenet-v2": classifiers.shufflenet_v2,
    "vgg13": classifiers.vgg13,
    **{f"yolo26{size}": partial(yolo26.yolo26, size) for size in "nsmlx"},
}
"""Every model by the name used in its rows."""
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "resnet": ("resnet-50", "resnet-18"),
    "mobilenet": (
        "mobilenet-v2",
        "mobilenetv2-050",
        "mobilenetv2-100",
        "mobilenetv2-110d",
        "ssd-mobilenet-v1",
    ),
    "efficientnet": ("efficientdet-d0", "efficientnet-b0", "mnasnet-a1"),
    "mobilenetv3": ("mobilenetv3-large", "mobilenetv3-small-050"),
    "yolo": ("yolov8n", "yolo11n", *(f"yolo26{size}" for size in "nsmlx")),
    "bert": ("bert-base",),
    "language": ("llama-2-7b", "phi-3-mini"),
    "vgg": ("vgg13", "repvgg-b0"),
    "vovnet": ("ese-vovnet19b-dw",),
    "shufflenet": ("shufflenet-v2",),
}
"""Models that resemble each other: the calibration is judged on a family that it has not seen."""
FAMILY_OF: Final = {model: family for family, models in FAMILIES.items() for model in models}


@cache
def architecture(name: str) -> Graph:
    """Return the graph of a model."""
    return ARCHITECTURES[name]()
