"""The constants of a model in memory, and its XML without writing its weights anywhere.

`openvino.serialize` writes to named files. The XML goes to a memory file through a link with the name
that OpenVINO insists on; the weights go to /dev/null, so offsets in that XML mean nothing (its position is
always 0).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any, NamedTuple

import openvino as ov

from softnpu.emulator.blob.weights import ConstLayer, const_layers
from softnpu.emulator.common import model_texts
from softnpu.emulator.common.model_bodies import bodies_of
from softnpu.emulator.compiler import ir_file
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

_SIZE_OF_NOTHING = 1
_UNREADABLE = re.compile(rb'<attribute name="fused_names" version="\d+" value="(?:[^"]*,)? *(?:,[^"]*)?" />')
"""The names that OpenVINO notes of an operation, if one is blank: it cannot read such a list back."""


@dataclass(frozen=True)
class ConstantNode:
    """A constant of a model: where its bytes lie in this process, as long as this record lives."""

    name: str
    address: int
    length: int
    owner: Any = field(default=None, repr=False, compare=False)

    def view(self) -> memoryview:
        """Return the bytes, without a copy; they live as long as the view."""
        if not self.length:
            return memoryview(b"")
        array = (ctypes.c_ubyte * self.length).from_address(self.address)
        array.owner = self.owner  # type: ignore[attr-defined]
        return memoryview(array).cast("B")


def constant_nodes(model: ov.Model, subject: str) -> list[ConstantNode]:
    """Return the constants of a model, those of nested bodies included.

    Refuses strings with `ERROR_UNSUPPORTED_FEATURE`: their bytes are spread over the heap.
    """
    return [_node(operation, subject) for operation in _constants(model)]


class SerializedIr(NamedTuple):
    """The XML of a model, and its constants, one for each of the `Const` layers in the order of the text."""

    xml: bytes
    nodes: list[ConstantNode]
    layers: list[ConstLayer]


def serialize_ir(
    model: ov.Model,
    subject: str,
    meanwhile: Callable[[list[ConstantNode]], None] | None = None,
    before: Callable[[list[ConstantNode]], None] | None = None,
    is_ours: bool = False,
) -> SerializedIr:
    """Return the XML of a model, and its constants.

    `is_ours`: nobody needs the model afterwards, and it is one of plain operations.

    `meanwhile` is called with the constants, each once, while OpenVINO writes the XML, for which it reads all
    of them; it holds Python's lock. `before` is called with them before that.

    Some are of a copy: a Pad without a value gets one when it is copied. In the XML they have their own
    sizes: OpenVINO writes one byte for a new constant without elements, which a model without any weights
    has not got.

    Refuses with `ERROR_MODULE_BUILD_FAILURE` a model that OpenVINO cannot write, and one that has constants
    which are not found in its XML; with `ERROR_UNSUPPORTED_FEATURE` constants of strings.
    """
    expected = "a model that OpenVINO can write"
    with openvino_errors(ZeResult.ERROR_MODULE_BUILD_FAILURE, f"{subject}, IR", expected):
        marked = model if is_ours else _copy(model)
        operations = list(_constants(marked))
    nodes = [_node(operation, subject) for operation in operations]
    mark = f"constant-{os.urandom(8).hex()}-"
    for number, operation in enumerate(operations):
        operation.set_friendly_name(f"{mark}{number}-")
    if before is not None:
        before(nodes)
    with openvino_errors(ZeResult.ERROR_MODULE_BUILD_FAILURE, f"{subject}, IR", expected):
        xml = _serialized(marked) if meanwhile is None else _beside(marked, partial(meanwhile, nodes))
    return _unmarked(xml, mark, nodes, subject)


def _copy(model: ov.Model) -> ov.Model:
    """Return a copy of a model, whose names are ours; it shares the constants."""
    copy = model.clone()
    for port, original in zip(copy.inputs, model.inputs, strict=True):
        with contextlib.suppress(UnicodeDecodeError):  # names that Python cannot hold stay as they are
            port.get_tensor().set_names(original.names)  # an input that is an output has lost some
    return copy


def _beside(model: ov.Model, work: Callable[[], None]) -> bytes:
    """Serialise a model in a thread, if there is one, while this one works."""
    with ThreadPoolExecutor(1, "IR") as pool:
        try:
            written = pool.submit(_serialized, model).result
        except RuntimeError:  # no thread
            written = partial(_serialized, model)
        work()
        return written()


def _unmarked(xml: bytes, mark: str, nodes: list[ConstantNode], subject: str) -> SerializedIr:
    """Return the XML with the names that its constants have, and the constant of each of its layers."""
    layer = re.compile(  # begins with a literal text: such a search is quick
        rb'name="%b(\d+)-[^"]*+("[^">]*+(?:"[^"]*+"[^">]*+)*+>\s*+<data(?:[^">]*+"[^"]*+")*?\s++size=")(\d+)'
        % re.escape(mark.encode())
    )
    in_xml: list[ConstantNode] = []

    def named(match: re.Match[bytes]) -> bytes:
        node = nodes[int(match[1])]
        size = int(match[3])
        if size != node.length and (node.length or size != _SIZE_OF_NOTHING):
            raise _unpaired(
                subject, f"constant '{node.name}'", found=f"{node.length} bytes, {size} in its XML"
            )
        in_xml.append(node)
        return b'name="' + _attribute(node.name) + match[2] + b"%d" % node.length

    xml = _UNREADABLE.sub(b"", layer.sub(named, xml))
    layers = const_layers(xml)
    if not len(in_xml) == len(layers) == len(nodes):
        raise _unpaired(
            subject,
            "IR",
            found=f"{len(nodes)} constants in the model, {len(layers)} in its XML, {len(in_xml)} of both",
        )
    return SerializedIr(xml, in_xml, layers)


def _attribute(name: str) -> bytes:
    """Return a name as it stands in an XML."""
    text = escape(name.partition("\0")[0])
    return re.sub("[\1-\37]", lambda control: f"&#{ord(control[0])};", text).encode(errors="replace")


def _unpaired(subject: str, object_name: str, *, found: str) -> Refused:
    return refuse(
        ZeResult.ERROR_MODULE_BUILD_FAILURE,
        f"{subject}, {object_name}",
        found=found,
        expected="the same constants in both",
        hint="this model nests operations in a way that the compiler does not know",
    )


def _serialized(model: ov.Model) -> bytes:
    return ir_file.written(lambda path: ov.serialize(model, path, os.devnull))


def _constants(model: Any) -> Iterator[Any]:
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        if kind == "Constant":
            yield operation
        for body in bodies_of(operation):
            yield from _constants(body)


def _node(operation: Any, subject: str) -> ConstantNode:
    name = model_texts.friendly_name(operation)
    if operation.get_element_type() == ov.Type.string:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{subject}, constant '{name}'",
            found="element type string",
            expected="constants of numbers",
            hint="move text out of the model",
        )
    length = operation.get_byte_size()
    return ConstantNode(name, operation.tensor_view.data.ctypes.data if length else 0, length, operation)
