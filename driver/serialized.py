"""Serialised models as programs pass them to `pfnCreate`, format NGRAPH_LITE.

Copying form, packed: version u16, u16 | parts u32, which is 2 | size u64 | XML | size u64 | weights.

No-copy form: six u64 (offset and size of custom data, constants, XML), then the custom data, which is the
version u16, u16; then constants; then the XML. There a constant has, instead of bytes, an attribute
`WeightsPointerAttribute` with `mp`, its address in this process, and `ms`, its bytes.

Neither is trusted: every size is checked before anything is read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from html import unescape

from softnpu.driver.errors import ZeError, error, invalid_argument, invalid_size
from softnpu.driver.graph_source import GraphSource
from softnpu.driver.process_memory import Piece, gather
from softnpu.emulator.common import model_texts
from softnpu.emulator.interface.result import ZeResult

XML_LIMIT = 256 << 20
_VERSION = struct.Struct("<HH")
_COPYING = struct.Struct("<HHIQ")
_SIZE = struct.Struct("<Q")
_STREAM = struct.Struct("<6Q")
_PARTS = 2

# a start tag; quoted text may hold anything but quotes
_LAYER = re.compile(
    rb'<layer(?P<head>(?:[^">]|"[^"]*")*+)>\s*+(?:<data(?P<data>(?:[^">]|"[^"]*")*+)>)?+'
    rb"(?:\s*+<rt_info>(?P<info>.*?)</rt_info>)?+",
    re.DOTALL,
)
_CONST = re.compile(rb'\stype="Const"')
_NAME = re.compile(rb'\sname="([^"]*)"')
_OFFSET = re.compile(rb'\soffset="(\d{1,20})"')
_SIZE_OF = re.compile(rb'\ssize="(\d{1,20})"')
_POINTER = re.compile(rb'\s*<attribute(?=[^>]*\sname="WeightsPointerAttribute")((?:[^">]|"[^"]*")*+)>')
_VERSION_OF = re.compile(rb'\sversion="([^"]*)"')
_ADDRESS = re.compile(rb'\smp="(\d{1,20})"')
_LENGTH = re.compile(rb'\sms="(\d{1,20})"')
_NET = re.compile(rb'<net(?:[^">]|"[^"]*")*?\sname="([^"]*)"')


@dataclass(frozen=True)
class _Form:
    """The positions of the parts of the input."""

    version: tuple[int, int]
    xml: tuple[int, int]
    weights: tuple[int, int]
    has_pointers: bool


@dataclass(frozen=True)
class _Constant:
    """A `Const` layer whose offset and size, in bytes `begin` to `end`, need rewriting."""

    piece: Piece
    begin: int
    end: int
    text: bytes


def parse(data: memoryview, compiler: tuple[int, int], call: str) -> GraphSource:
    """Parse the model in `data`, bytes of this process that stay valid during the call.

    Raises `ZeError`: INVALID_SIZE for sizes that do not fit, INVALID_ARGUMENT for another layout or dangling
    pointers, UNSUPPORTED_VERSION for a model written for another compiler.
    """
    form = _form(data, call)
    if form.version[0] != compiler[0]:
        raise error(
            call,
            ZeResult.ERROR_UNSUPPORTED_VERSION,
            "serialised model",
            found=f"written for compiler {form.version[0]}.{form.version[1]}",
            expected=f"{compiler[0]}.{compiler[1]}, the version of this device",
        )
    start, size = form.xml
    if not 0 < size <= XML_LIMIT:
        raise _bad_size(call, "XML", found=f"{size} bytes", expected=f"1 to {XML_LIMIT}")
    xml = bytes(data[start : start + size])
    base = _address(data) + form.weights[0]
    if form.has_pointers:
        return _with_pointers(xml, base, form.weights[1], call)
    pieces = [Piece("weights", base, form.weights[1])] if form.weights[1] else []
    gathered = gather(pieces, call)
    lead = gathered.offsets[0] if pieces else 0
    if lead:
        # the weights begin mid-page in a file: offsets count from there
        xml = _moved(xml, lead)
    return GraphSource.from_xml(_name(xml), xml, weights=gathered.files)


def _with_pointers(xml: bytes, base: int, size: int, call: str) -> GraphSource:
    constants = _constants(xml, base, size, call)
    gathered = gather([constant.piece for constant in constants], call)
    parts, last = [], 0
    for constant, offset in zip(constants, gathered.offsets, strict=True):
        text = _OFFSET.sub(b' offset="%d"' % offset, constant.text, count=1)
        parts += [
            xml[last : constant.begin],
            _SIZE_OF.sub(b' size="%d"' % constant.piece.length, text, count=1),
        ]
        last = constant.end
    rewritten = b"".join([*parts, xml[last:]])
    return GraphSource.from_xml(_name(xml), rewritten, weights=gathered.files)


def _constants(xml: bytes, base: int, size: int, call: str) -> list[_Constant]:
    """Return the constants of the no-copy form, given by pointer or in the input's constants part."""
    constants = []
    for layer in _LAYER.finditer(xml):
        if layer["data"] is None or not _CONST.search(layer["head"]):
            continue
        offset, length = _OFFSET.search(layer["data"]), _SIZE_OF.search(layer["data"])
        if offset is None or length is None:
            continue
        named = _NAME.search(layer["head"])
        name = unescape(model_texts.text(named[1])) if named else ""
        pointer = _POINTER.search(layer["info"] or b"")
        if pointer is not None:
            piece = _pointed(name, pointer[1], call)
            text = xml[layer.start("data") : layer.start("info") + pointer.start()]
            end = layer.start("info") + pointer.end()
        else:
            at, count = int(offset[1]), int(length[1])
            if at > size or count > size - at:
                raise _bad_size(
                    call,
                    f"constant '{name}'",
                    found=f"{count} bytes at {at}",
                    expected=f"a range inside {size}",
                )
            piece = Piece(name, base + at, count)
            text, end = layer["data"], layer.end("data")
        constants.append(_Constant(piece, layer.start("data"), end, text))
    return constants


def _pointed(name: str, attribute: bytes, call: str) -> Piece:
    version, address, length = (pattern.search(attribute) for pattern in (_VERSION_OF, _ADDRESS, _LENGTH))
    if version is None or version[1] != b"0" or address is None or length is None:
        raise invalid_argument(
            call,
            f"constant '{name}'",
            found=f"WeightsPointerAttribute{attribute[:100].decode(errors='replace')}",
            expected="version 0 with mp (address) and ms (bytes)",
            hint="use NPU_MODEL_SERIALIZER_VERSION=ALL_WEIGHTS_COPY",
        )
    where, count = int(address[1]), int(length[1])
    if count and (not where or where + count >= 1 << 64):
        raise invalid_argument(
            call,
            f"constant '{name}'",
            found=f"{count} bytes at address {where:#x}",
            expected="memory of this process",
        )
    return Piece(name, where, count)


def _form(data: memoryview, call: str) -> _Form:
    if len(data) >= _STREAM.size:
        fields = _STREAM.unpack_from(data)
        if fields[0] == _STREAM.size and fields[1] == _VERSION.size:
            return _stream_form(data, fields, call)
    if len(data) < _COPYING.size:
        raise _bad_size(call, "header", found=f"{len(data)} bytes", expected=f"at least {_COPYING.size}")
    major, minor, parts, xml_size = _COPYING.unpack_from(data)
    if parts != _PARTS:
        raise invalid_argument(
            call,
            "serialised model",
            found=f"{parts} parts",
            expected=f"{_PARTS}, XML and weights, or the header of a stream",
        )
    left = len(data) - _COPYING.size
    if xml_size > left or _SIZE.size > left - xml_size:
        raise _bad_size(
            call, "XML", found=f"{xml_size} bytes", expected=f"at most {max(0, left - _SIZE.size)}"
        )
    at = _COPYING.size + xml_size
    (weights_size,) = _SIZE.unpack_from(data, at)
    if weights_size != len(data) - at - _SIZE.size:
        expected = f"{len(data) - at - _SIZE.size}, the rest of the input"
        raise _bad_size(call, "weights", found=f"{weights_size} bytes", expected=expected)
    return _Form((major, minor), (_COPYING.size, xml_size), (at + _SIZE.size, weights_size), False)


def _stream_form(data: memoryview, fields: tuple[int, ...], call: str) -> _Form:
    names = ("custom data", "constants", "XML")
    for number, name in enumerate(names):
        offset, size = fields[2 * number : 2 * number + 2]
        if offset > len(data) or size > len(data) - offset:
            raise _bad_size(
                call, name, found=f"{size} bytes at {offset}", expected=f"a range inside {len(data)} bytes"
            )
    version = _VERSION.unpack_from(data, fields[0])
    return _Form(version, (fields[4], fields[5]), (fields[2], fields[3]), True)


def _moved(xml: bytes, by: int) -> bytes:
    """Return the XML with the offsets of its constants shifted."""

    def moved(layer: re.Match[bytes]) -> bytes:
        text = layer[0]
        if layer["data"] is None or not _CONST.search(layer["head"]):
            return text
        begin, end = (at - layer.start() for at in layer.span("data"))
        data = _OFFSET.sub(lambda offset: b' offset="%d"' % (int(offset[1]) + by), layer["data"], count=1)
        return text[:begin] + data + text[end:]

    return _LAYER.sub(moved, xml)


def _name(xml: bytes) -> str:
    net = _NET.search(xml, 0, 1 << 16)
    return unescape(model_texts.text(net[1])) if net else "model"


def _address(data: memoryview) -> int:
    """Return the address of the bytes, even if they are read-only."""
    import numpy as np

    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data) if len(data) else 0


def _bad_size(call: str, part: str, *, found: str, expected: str) -> ZeError:
    return invalid_size(call, f"serialised model, {part}", found=found, expected=expected)
