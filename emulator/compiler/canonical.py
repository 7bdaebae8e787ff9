"""A model in canonical form: XML with canonical offsets, and all constants with digests and locations.

The form depends on the model only. Constants of the client lie in the mapped weights space and are
referred to; those that the compiler made (folded, converted), and small ones if requested, go into the blob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import openvino as ov

from softnpu.emulator.blob.constant_digests import constant_digest
from softnpu.emulator.blob.container import ConstantReference, WeightsReference
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement, aligned, with_offsets
from softnpu.emulator.compiler.constants import ConstantNode, serialize_ir
from softnpu.emulator.compiler.digests import WeightDigests
from softnpu.emulator.interface.result import ZeResult, refuse


@dataclass(frozen=True)
class Canonical:
    """A model ready to be packed. `embedded` are the constants that go into the WEIGHTS section."""

    xml: bytes
    reference: WeightsReference | None
    placement: Placement | None
    embedded: tuple[ConstantNode, ...]
    embedded_size: int

    def embedded_chunks(self) -> Iterator[bytes | memoryview]:
        """The content of the WEIGHTS section."""
        at = 0
        for node in self.embedded:
            yield bytes(aligned(at) - at)
            yield node.view()
            at = aligned(at) + node.length


@dataclass
class _Content:
    """One distinct constant: the first layer that has it, and where it can be referred to."""

    node: ConstantNode
    digest: bytes
    inside: int | None


def canonical(
    model: ov.Model,
    weights: WeightDigests | None,
    embed_below: int,
    subject: str,
    advance: Callable[[float], None],
) -> Canonical:
    """Bring `model`, read over the space of `weights`, into canonical form.

    Constants of fewer than `embed_below` bytes are embedded. `advance` gets the share of constants that are
    digested.
    """
    xml, nodes, layers = serialize_ir(model, subject)

    contents: dict[bytes, _Content] = {}
    places = [None if weights is None else _inside(weights.space, node, subject) for node in nodes]
    of_node = _digests(nodes, places, weights, advance)
    for node, inside in zip(nodes, places, strict=True):
        digest = of_node[node.address, node.length]
        content = contents.setdefault(digest, _Content(node, digest, inside))
        if content.inside is None and inside is not None:
            content.inside = inside
    if not nodes:
        return Canonical(xml, None, None, (), 0)

    references: list[ConstantReference] = []
    offsets: list[int] = []
    embedded: list[ConstantNode] = []
    size = embedded_size = 0
    at_digest: dict[bytes, int] = {}
    for digest, content in contents.items():
        length = content.node.length
        if not length:
            at_digest[digest] = 0
            continue
        at_digest[digest] = aligned(size)
        size = aligned(size) + length
        embedded_at = -1
        if content.inside is not None and length >= embed_below:
            offsets.append(content.inside)
        else:
            embedded_at = aligned(embedded_size)
            embedded_size = embedded_at + length
            embedded.append(content.node)
        references.append(
            ConstantReference(
                name=content.node.name,
                offset=at_digest[digest],
                length=length,
                digest=digest,
                embedded=embedded_at,
            )
        )
    xml = with_offsets(xml, layers, [at_digest[of_node[node.address, node.length]] for node in nodes])
    reference = WeightsReference(size=size, constants=tuple(references))
    placement = Placement(offsets=tuple(offsets)) if offsets else None
    return Canonical(xml, reference, placement, tuple(embedded), embedded_size)


def _digests(
    nodes: list[ConstantNode],
    places: list[int | None],
    weights: WeightDigests | None,
    advance: Callable[[float], None],
) -> dict[tuple[int, int], bytes]:
    """Return the digest of every constant, by address and length: equal ranges are read once."""
    digests: dict[tuple[int, int], bytes] = {}
    total = sum(node.length for node in nodes) or 1
    done = reported = 0
    for node, inside in zip(nodes, places, strict=True):
        done += node.length
        if (node.address, node.length) not in digests:
            digests[node.address, node.length] = (
                constant_digest(node.view())
                if inside is None or weights is None
                else weights.of(inside, node.length)
            )
        if done - reported > total // 64:
            reported = done
            advance(done / total)
    return digests


def _inside(space: WeightSpace, node: ConstantNode, subject: str) -> int | None:
    """Return the offset of a constant in the space; None if it is not one of the client's."""
    if not space.covers(node.address):
        return None
    offset = space.offset_of(node.address, node.length)
    if offset is None:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{subject}, constant '{node.name}'",
            found=f"{node.length} bytes that reach beyond the end of its weights",
            expected="the weights that belong to the model",
        )
    return offset
