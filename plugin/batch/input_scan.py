"""A quick look at the inputs of a model, without OpenVINO when it is an IR: shapes, layouts, names.

Most models have no batch, and must not pay for one: the XML of YOLOv8n (1 MB) is looked through in about a
millisecond, where reading it takes thirty.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape

import openvino as ov

from softnpu.plugin.batch.layer_rules import BATCH_BY_DEFINITION

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


@dataclass(frozen=True)
class InputLook:
    """What a batch is recognised by, of one input. `names` finds it: tensor names, then the friendly name."""

    names: tuple[str, ...]
    shape: ov.PartialShape
    layout: ov.Layout

    @property
    def name(self) -> str:
        """How messages and the compiler call it."""
        return self.names[0]


@dataclass(frozen=True)
class ModelInputs:
    """The inputs, and whether there is an operation whose definition has a batch."""

    inputs: tuple[InputLook, ...]
    has_batch_layer: bool

    def shaped(self, shapes: Mapping[str, Sequence[int]] | None) -> ModelInputs:
        """With the shapes that inputs are to be given; names of no input are the compiler's to refuse."""
        if not shapes:
            return self
        return replace(self, inputs=tuple(_shaped(look, shapes) for look in self.inputs))


def look_at_xml(fd: int, length: int) -> ModelInputs | None:
    """The inputs of an IR in a descriptor; None when it takes OpenVINO to tell."""
    if not length:
        return None
    with mmap.mmap(fd, length, prot=mmap.PROT_READ) as xml:
        # bodies of loops have parameters of their own
        if xml.find(b"body>") >= 0 or xml.find(b"<body") >= 0:
            return None
        looks = []
        at = xml.find(_PARAMETER)
        while at >= 0:
            begin, end = xml.rfind(b"<layer", 0, at), xml.find(b"</layer>", at)
            look = _parameter(xml[begin:end]) if 0 <= begin < end else None
            if look is None:
                return None
            looks.append(look)
            at = xml.find(_PARAMETER, end)
        if not looks:
            return None
        may_matter = any(len(look.shape) and look.shape[0] != ov.Dimension(1) for look in looks)
        return ModelInputs(tuple(looks), may_matter and _BATCH_LAYER.search(xml) is not None)


def look_at_model(model: ov.Model) -> ModelInputs:
    """The inputs of a model in memory."""
    looks = [
        InputLook((*sorted(port.names), port.node.friendly_name), port.partial_shape, port.node.layout)
        for port in model.inputs
    ]
    return ModelInputs(tuple(looks), any(op.get_type_name() in BATCH_BY_DEFINITION for op in model.get_ops()))


def _parameter(layer: bytes) -> InputLook | None:
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
    told = ov.Layout(_text(layout[1])) if layout else ov.Layout()
    friendly = _text(name[1])
    return InputLook((*sorted(tensor.replace("\\,", ",") for tensor in tensors), friendly), partial, told)


def _text(data: bytes) -> str:
    return unescape(data.decode())


def _shaped(look: InputLook, shapes: Mapping[str, Sequence[int]]) -> InputLook:
    for name in look.names:
        if name in shapes:
            try:
                return replace(look, shape=ov.PartialShape(list(shapes[name])))
            except (RuntimeError, TypeError, ValueError):
                return look
    return look
