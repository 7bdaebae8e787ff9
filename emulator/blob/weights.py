"""The location of a model's constants: weight sources, the weights space, canonical offsets, placement.

Weights are a list of sources: ranges of descriptors, in the order in which these travel. The *weights space*
is the concatenation of the sources, each on its own pages, so that it can be mapped without a copy (see
`SpaceLayout`). Offsets of `Const` layers in an XML sent by a driver refer to it; with one source at offset 0
they are simply file offsets.

A blob does not know the sources. Its IR refers to *canonical offsets*: every distinct constant once, in the
order of the XML, each at a multiple of 64. So one model gives one blob, wherever its weights come from. The
`Placement` gives the location of each referenced constant in the weights space; constants inside the blob lie
after the space, see `offsets_in_space`.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence

import msgspec

from softnpu.emulator.blob.container import WeightsReference
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

CONSTANT_ALIGNMENT = 64
MAX_SOURCES = 14
"""Maximum sources of one model: blob, placement and sources must fit into one frame."""
MAX_SPACE = 1 << 46
"""Maximum bytes of a weights space: half of what a process can address."""

# a start tag with its attributes; quoted text may hold anything but quotes, and is passed over as a whole
_ATTRIBUTES = rb'[^">]*+(?:"[^"]*+"[^">]*+)*+'
_LAYER = re.compile(rb"<layer(%b)>\s*+(?:<data(%b)>)?+" % (_ATTRIBUTES, _ATTRIBUTES))
_CONST = re.compile(rb'\stype="Const"')
_NAME = re.compile(rb'\sname="([^"]*)"')
_OFFSET = re.compile(rb'(?<=\soffset=")\d{1,20}(?=")')
_SIZE = re.compile(rb'(?<=\ssize=")\d{1,20}(?=")')


class SpaceLayout:
    """The weights space of a list of sources.

    Source i begins on a page, base_i; its first byte lies at base_i + offset_i mod 4096. base_0 is 0 and
    base_(i+1) the next page after source i. `starts` holds the position of each source's first byte, `size`
    the bytes of the whole space, a multiple of the page.
    """

    def __init__(self, sources: Sequence[WeightSource]) -> None:
        self.sources = tuple(sources)
        self.starts: list[int] = []
        base = 0
        for source in sources:
            self.starts.append(base + source.offset % PAGE)
            base = page_up(self.starts[-1] + source.length)
        self.size = base

    @property
    def end(self) -> int:
        """The end of the last source."""
        return self.starts[-1] + self.sources[-1].length if self.sources else 0

    def holds(self, offset: int, length: int) -> bool:
        """Return whether these bytes lie inside one source."""
        index = bisect.bisect_right(self.starts, offset) - 1
        if index < 0 or length < 0:
            return False
        return length <= self.sources[index].length - (offset - self.starts[index])


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets in the weights space of the constants that a blob refers to.

    `offsets` has one entry for each non-embedded constant of `WeightsReference`, in that order.
    """

    offsets: tuple[int, ...]

    def encode(self) -> bytes:
        """Encode it for a memory file."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Placement:
        """Decode a placement. Refuses malformed data with `ERROR_INVALID_ARGUMENT`."""
        try:
            return msgspec.msgpack.decode(data, type=Placement)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT, "placement", found=str(error), expected="a list of offsets"
            ) from error


class ConstLayer(msgspec.Struct, frozen=True):
    """A `Const` layer of an XML: its offset and size, the position of the offset's digits, and its name."""

    offset: int
    size: int
    begin: int
    end: int
    name: bytes = b""


def page_up(size: int) -> int:
    """Round `size` up to whole pages."""
    return -(-size // PAGE) * PAGE


def check_sources(sources: Sequence[WeightSource], subject: str) -> None:
    """Refuse more sources than a frame carries, and ranges too large for any address space."""
    if len(sources) > MAX_SOURCES:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_SIZE,
            f"{subject}, weights",
            found=f"{len(sources)} sources",
            expected=f"at most {MAX_SOURCES}",
            hint="put the weights into fewer files",
        )
    for number, source in enumerate(sources):
        if not (0 <= source.offset <= MAX_SPACE and 0 < source.length <= MAX_SPACE):
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                f"{subject}, weights" + (f" {number}" if len(sources) > 1 else ""),
                found=f"{source.length} bytes at offset {source.offset}",
                expected=f"at least one byte, all below {MAX_SPACE}",
            )


def const_layers(xml: bytes) -> list[ConstLayer]:
    """Return the `Const` layers of an XML written by OpenVINO, in textual order."""
    layers = []
    for layer in _LAYER.finditer(xml):
        if layer[2] is None or not _CONST.search(layer[1]):
            continue
        offset, size = _OFFSET.search(layer[2]), _SIZE.search(layer[2])
        if offset and size:
            at = layer.start(2)
            name = _NAME.search(layer[1])
            layers.append(
                ConstLayer(
                    int(offset[0]),
                    int(size[0]),
                    at + offset.start(),
                    at + offset.end(),
                    name[1] if name else b"",
                )
            )
    return layers


def with_offsets(xml: bytes, layers: Sequence[ConstLayer], offsets: Sequence[int]) -> bytes:
    """Return the XML with new offsets for its `Const` layers."""
    parts, last = [], 0
    for layer, offset in zip(layers, offsets, strict=True):
        parts += [xml[last : layer.begin], b"%d" % offset]
        last = layer.end
    return b"".join([*parts, xml[last:]])


def aligned(size: int) -> int:
    """Return the first offset for a constant, at or after `size`."""
    return -(-size // CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT


def check_canonical(reference: WeightsReference) -> None:
    """Refuse with `ERROR_INVALID_NATIVE_BINARY` constants that are not where a compiler puts them."""
    end = 0
    for constant in reference.constants:
        if constant.offset != aligned(end) or constant.length <= 0:
            raise _malformed(
                f"constant '{constant.name}'",
                found=f"{constant.length} bytes at canonical offset {constant.offset}",
                expected=f"at least one byte at {aligned(end)}",
            )
        end = constant.offset + constant.length
    if reference.size != end:
        raise _malformed(
            "section WEIGHTS_REFERENCE",
            found=f"size {reference.size}",
            expected=f"{end}, the end of the last",
        )


def offsets_in_space(
    reference: WeightsReference | None, placement: Placement | None, space: SpaceLayout, embedded: int
) -> dict[int, int]:
    """Map canonical to actual offsets, for every constant that a blob refers to.

    `embedded` is the size of the blob's WEIGHTS section, which is mapped right after the space. Without a
    placement a constant lies at its canonical offset. Refuses constants outside of the space: with
    `ERROR_INVALID_ARGUMENT` if the weights are too few, with `ERROR_INVALID_NATIVE_BINARY` if the blob is
    wrong.
    """
    if reference is None:
        return {}
    offsets = [constant.offset for constant in reference.outside] if placement is None else placement.offsets
    if len(offsets) != len(reference.outside):
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "placement",
            found=f"{len(offsets)} offsets",
            expected=f"{len(reference.outside)}, one for each constant outside of the blob",
        )
    actual = {}
    for constant, offset in zip(reference.outside, offsets, strict=True):
        if not space.holds(offset, constant.length):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"weights, constant '{constant.name}'",
                found=f"{constant.length} bytes at {offset} of weights that end at {space.end}",
                expected="a range inside one source",
                hint="these are other weights: use those that the model was compiled with",
            )
        actual[constant.offset] = offset
    for constant in reference.constants:
        if constant.embedded < 0:
            continue
        if not 0 <= constant.length <= embedded - constant.embedded:
            found = f"{constant.length} bytes at {constant.embedded}"
            raise _malformed(
                f"constant '{constant.name}'",
                found=found,
                expected=f"inside the {embedded} of section WEIGHTS",
            )
        actual[constant.offset] = space.size + constant.embedded
    return actual


def with_actual_offsets(xml: bytes, actual: Mapping[int, int]) -> bytes:
    """Return the IR of a blob with actual instead of canonical offsets.

    Refuses with `ERROR_INVALID_NATIVE_BINARY` a constant that the blob does not list.
    """
    layers = const_layers(xml)
    unknown = next((layer for layer in layers if layer.size and layer.offset not in actual), None)
    if unknown is not None:
        raise _malformed(
            "IR", found=f"a constant at {unknown.offset}", expected="constants that WEIGHTS_REFERENCE lists"
        )
    return with_offsets(xml, layers, [actual[layer.offset] if layer.size else 0 for layer in layers])


def _malformed(field: str, found: str, expected: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_NATIVE_BINARY,
        f"blob, {field}",
        found=found,
        expected=expected,
        hint="compile the model again",
    )
