"""A quick scan of the inputs of a model, for an IR without OpenVINO: shapes, layouts, names.

Most models have no batch and should not pay for it: scanning the XML of YOLOv8n (1 MB) takes about a
millisecond, reading the model thirty.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import openvino as ov
from msgspec.structs import replace

from softnpu.emulator.common import model_texts

BATCH_BY_DEFINITION = frozenset(
    ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData",
     "BinaryConvolution", "DeformableConvolution", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool",
     "BatchNormInference", "GroupNormalization", "DepthToSpace", "SpaceToDepth", "GridSample", "LSTMSequence",
     "GRUSequence", "RNNSequence", "LSTMCell", "GRUCell", "RNNCell")
)  # fmt: skip
"""Types that define axis 0 of their first input as the batch, whatever layouts say."""

_PARAMETER = b'type="Parameter"'
_SHAPE = re.compile(rb'<data\b[^>]*?\sshape="([^"]*)"')
_NAME = re.compile(rb'\sname="([^"]*)"')
_NAMES = re.compile(rb'<port\b[^>]*?\snames="([^"]*)"')
_LAYOUT = re.compile(rb'<attribute\b[^>]*?\sname="layout"[^>]*?\slayout="([^"]*)"')
_BATCH_LAYER = re.compile(
    b'type="(?:' + b"|".join(kind.encode() for kind in sorted(BATCH_BY_DEFINITION)) + b')"'
)
# a comma inside a name is written as \,
_COMMA = re.compile(r"(?<!\\),")


class InputInfo(msgspec.Struct, frozen=True):
    """One input: its tensor names followed by the friendly name, its shape, and its layout.

    Empty tensor names are omitted: OpenVINO accepts them, but does not write them into an IR.
    """

    names: tuple[str, ...]
    shape: ov.PartialShape
    layout: ov.Layout

    @property
    def name(self) -> str:
        """The name for messages and for the compiler."""
        return self.names[0]


class ModelInputs(msgspec.Struct, frozen=True):
    """The inputs of a model, and whether an operation of it defines a batch."""

    inputs: tuple[InputInfo, ...]
    has_batch_layer: bool


Shapes = Mapping[str, Sequence[int]]
"""New shapes of inputs, by name. The compiler refuses unknown names later."""


def scan_xml(fd: int, length: int, shapes: Shapes | None = None) -> ModelInputs | None:
    """Return the inputs of an IR in a descriptor, with `shapes`; None when OpenVINO has to read it."""
    if not length:
        return None
    with mmap.mmap(fd, length, prot=mmap.PROT_READ) as xml:
        # loop bodies have parameters of their own
        if xml.find(b"body>") >= 0 or xml.find(b"<body") >= 0:
            return None
        inputs = []
        at = xml.find(_PARAMETER)
        while at >= 0:
            begin, end = xml.rfind(b"<layer", 0, at), xml.find(b"</layer>", at)
            entry = _parameter(xml[begin:end]) if 0 <= begin < end else None
            if entry is None:
                return None
            inputs.append(entry)
            at = xml.find(_PARAMETER, end)
        if not inputs:
            return None
        may_be_batched = any(len(entry.shape) and entry.shape[0] != ov.Dimension(1) for entry in inputs)
        has_batch_layer = may_be_batched and _BATCH_LAYER.search(xml) is not None
        return ModelInputs(tuple(_shaped(entry, shapes or {}) for entry in inputs), has_batch_layer)


def scan_model(model: ov.Model, shapes: Shapes | None = None) -> ModelInputs:
    """Return the inputs of a model in memory, with `shapes`."""
    inputs = [
        InputInfo(_listed(port.names, port.node.friendly_name), port.partial_shape, port.node.layout)
        for port in model.inputs
    ]
    has_batch_layer = any(op.get_type_name() in BATCH_BY_DEFINITION for op in model.get_ops())
    return ModelInputs(tuple(_shaped(entry, shapes or {}) for entry in inputs), has_batch_layer)


def _parameter(layer: bytes) -> InputInfo | None:
    shape, name = _SHAPE.search(layer), _NAME.search(layer)
    if shape is None or name is None:
        return None
    names, layout = _NAMES.search(layer), _LAYOUT.search(layer)
    tensors = _COMMA.split(_text(names[1])) if names else []
    try:
        partial = ov.PartialShape(f"[{_text(shape[1])}]")
    except (RuntimeError, TypeError, ValueError):
        return None
    if partial.rank.is_dynamic:
        return None
    listed = _listed((tensor.replace("\\,", ",") for tensor in tensors), _text(name[1]))
    return InputInfo(listed, partial, ov.Layout(_text(layout[1])) if layout else ov.Layout())


def _listed(tensors: Iterable[str], friendly: str) -> tuple[str, ...]:
    return (*sorted(filter(None, tensors)), friendly)


def _text(data: bytes) -> str:
    text = model_texts.text(data)
    if "&" not in text:
        return text
    from html import unescape  # late: its table of entities is large

    return unescape(text)


def _shaped(entry: InputInfo, shapes: Shapes) -> InputInfo:
    for name in entry.names:
        if name in shapes:
            try:
                return replace(entry, shape=ov.PartialShape(list(shapes[name])))
            except (RuntimeError, TypeError, ValueError):
                return entry
    return entry
