"""A model in canonical form: XML with canonical offsets, and all constants with digests and locations.

The form depends on the model only. Constants of the client lie in the mapped weights space and are
referred to; those that the compiler made (folded, converted), and small ones if requested, go into the blob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import openvino as ov

from softnpu.emulator.blob.constant_digests import constant_digest
from softnpu.emulator.blob.container import ConstantReference, WeightsReference
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement, aligned, with_offsets
from softnpu.emulator.compiler.constants import ConstantNode, serialize_ir
from softnpu.emulator.compiler.constants_file import ConstantsFile
from softnpu.emulator.compiler.digests import WeightDigests
from softnpu.emulator.interface.result import ZeResult, refuse

_MANY = 1 << 20
"""Bytes of constants from which another thread writes them."""


@dataclass(frozen=True)
class Canonical:
    """A model ready to be packed. `embedded` are the constants that go into the WEIGHTS section.

    `file` has them already, unless they are few.
    """

    xml: bytes
    reference: WeightsReference | None
    placement: Placement | None
    embedded: tuple[ConstantNode, ...]
    embedded_size: int
    file: ConstantsFile | None = None

    def embedded_chunks(self) -> Iterator[bytes | memoryview]:
        """The content of the WEIGHTS section."""
        return iter([self.file.view]) if self.file is not None else _chunks(self.embedded)


def _chunks(embedded: Sequence[ConstantNode]) -> Iterator[bytes | memoryview]:
    at = 0
    for node in embedded:
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
    embedded_at: int = 0,
    is_ours: bool = False,
) -> Canonical:
    """Bring `model`, read over the space of `weights`, into canonical form.

    Constants of fewer than `embed_below` bytes are embedded; the first is at `embedded_at` in the blob.
    `advance` gets the share of constants that are digested. `is_ours`: see `serialize_ir`.
    """
    with ThreadPoolExecutor(1, "constants") as pool:
        constants = _Constants(weights, embed_below, subject, advance)
        early: list[tuple[list[ConstantNode], Future[ConstantsFile]]] = []

        def prepare(nodes: list[ConstantNode]) -> None:
            """Digest constants, and begin to write them in this order, which is that of the XML."""
            constants.digest(nodes)
            embedded = [
                content.node for content in constants.distinct(nodes) if constants.is_embedded(content)
            ]
            if sum(node.length for node in embedded) >= _MANY:
                chunks = list(_chunks(embedded))
                with suppress(RuntimeError):  # no thread
                    early.append((embedded, pool.submit(ConstantsFile, embedded_at, chunks)))

        xml, nodes, layers = serialize_ir(model, subject, before=prepare, is_ours=is_ours)
        if not nodes:
            return Canonical(xml, None, None, (), 0)
        references: list[ConstantReference] = []
        offsets: list[int] = []
        embedded: list[ConstantNode] = []
        size = embedded_size = 0
        at_digest: dict[bytes, int] = {}
        for content in constants.distinct(nodes):
            length = content.node.length
            if not length:
                at_digest[content.digest] = 0
                continue
            at_digest[content.digest] = aligned(size)
            size = aligned(size) + length
            at = -1
            if constants.is_embedded(content):
                at = aligned(embedded_size)
                embedded_size = at + length
                embedded.append(content.node)
            else:
                assert content.inside is not None
                offsets.append(content.inside)
            references.append(
                ConstantReference(
                    name=content.node.name,
                    offset=at_digest[content.digest],
                    length=length,
                    digest=content.digest,
                    embedded=at,
                )
            )
        xml = with_offsets(xml, layers, [at_digest[constants.digest_of(node)] for node in nodes])
        reference = WeightsReference(size=size, constants=tuple(references))
        placement = Placement(offsets=tuple(offsets)) if offsets else None
        file = next((made.result() for order, made in early if order == embedded), None)
        return Canonical(xml, reference, placement, tuple(embedded), embedded_size, file)


class _Constants:
    """The constants of a model: their digests, and the places of those that are in the space of `weights`."""

    def __init__(
        self,
        weights: WeightDigests | None,
        embed_below: int,
        subject: str,
        advance: Callable[[float], None],
    ) -> None:
        self._weights = weights
        self._embed_below = embed_below
        self._subject = subject
        self._advance = advance
        self._places: dict[tuple[int, int], int | None] = {}
        self._digests: dict[tuple[int, int], bytes] = {}

    def digest(self, nodes: list[ConstantNode]) -> None:
        """Find and digest them."""
        weights = self._weights
        if weights is not None:
            for node in nodes:
                self._places[node.address, node.length] = _inside(weights.space, node, self._subject)
        self._digests = _digests(nodes, self._places, weights, self._advance)

    def digest_of(self, node: ConstantNode) -> bytes:
        """Return its digest."""
        return self._digests[node.address, node.length]

    def distinct(self, nodes: list[ConstantNode]) -> Iterable[_Content]:
        """Return the distinct ones, in this order; one of several that are equal may be the client's."""
        contents: dict[bytes, _Content] = {}
        for node in nodes:
            digest, inside = self.digest_of(node), self._places.get((node.address, node.length))
            content = contents.setdefault(digest, _Content(node, digest, inside))
            if content.inside is None and inside is not None:
                content.inside = inside
        return contents.values()

    def is_embedded(self, content: _Content) -> bool:
        """Whether it goes into the blob."""
        return content.node.length > 0 and (content.inside is None or content.node.length < self._embed_below)


def _digests(
    nodes: list[ConstantNode],
    places: Mapping[tuple[int, int], int | None],
    weights: WeightDigests | None,
    advance: Callable[[float], None],
) -> dict[tuple[int, int], bytes]:
    """Return the digest of every constant, by address and length: equal ranges are read once."""
    digests: dict[tuple[int, int], bytes] = {}
    total = sum(node.length for node in nodes) or 1
    done = reported = 0
    for node in nodes:
        done += node.length
        inside = places.get((node.address, node.length))
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
