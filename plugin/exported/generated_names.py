"""Names that OpenVINO numbers: a model built again in memory has others, and is the same to CACHE_DIR."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import openvino as ov
from msgspec.structs import replace

from softnpu.emulator.common import model_texts
from softnpu.plugin.signature import PortSpec, Signature

_LAYER = re.compile(rb'(<layer id="\d+" name=")(\w+)_\d+(" type="(\w+)")')
_TENSOR = re.compile(rb'(\s(?:output_)?names=")(?:Parameter|Result)_\d+(")')
"""A port without a name gets that of its operation when it is written."""
_NET = re.compile(rb'(<net name=")Model\d+(")')
_MODEL = re.compile(r"Model\d+")
_PORT = re.compile(r"(Parameter|Result)_\d+")
_IN_FILES = {b"constant": b"const"}
"""Types that have another name in a file."""


def without_numbers(xml: bytes) -> bytes:
    """Return an IR without the names that OpenVINO gave: `Add_12` of an Add, `Model3` of the model."""

    def bare(layer: re.Match[bytes]) -> bytes:
        kind = layer[2].lower()
        is_generated = _IN_FILES.get(kind, kind) == layer[4].lower()
        return layer[1] + layer[3] if is_generated else layer[0]

    xml = _TENSOR.sub(rb"\1\2", _LAYER.sub(bare, xml))
    return _NET.sub(rb"\1\2", xml, count=1)


def without_number(name: str) -> str:
    """Return the name of a model, empty for one that OpenVINO gave."""
    return "" if _MODEL.fullmatch(name) else name


def named_as(signature: Signature, model: ov.Model | None, name: str) -> Signature:
    """Return the signature of an equal model with the name, and the numbered names, of this one.

    `model` is None for a file, in which names are the same.
    """
    if model is None:
        return replace(signature, name=name)
    return replace(
        signature,
        name=name,
        inputs=_named(signature.inputs, model.inputs),
        outputs=_named(signature.outputs, model.outputs),
    )


def _named(specs: Sequence[PortSpec], ports: Sequence[Any]) -> tuple[PortSpec, ...]:
    return tuple(
        _named_as(spec, port) if _PORT.fullmatch(spec.name) else spec
        for spec, port in zip(specs, ports, strict=True)
    )


def _named_as(spec: PortSpec, port: Any) -> PortSpec:
    names = tuple(sorted(model_texts.tensor_names(port)))
    return replace(spec, name=names[0] if names else model_texts.friendly_name(port.node), names=names)
