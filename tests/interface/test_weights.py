"""The weights space, canonical offsets and placements: locations of constants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softnpu.emulator.blob import weights
from softnpu.emulator.blob.container import ConstantReference, WeightsReference
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import (
    Placement,
    SpaceLayout,
    const_layers,
    with_actual_offsets,
    with_offsets,
)
from softnpu.emulator.common import linux
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_LAYER = b'<layer id="%d" name="%s" type="%s"><data element_type="f32" shape="1" offset="%d" size="%d" />'
_REFERENCE = WeightsReference(
    size=132,
    constants=(
        ConstantReference(name="a", offset=0, length=4, digest=bytes(16)),
        ConstantReference(name="b", offset=64, length=4, digest=bytes(16), embedded=8),
        ConstantReference(name="c", offset=128, length=4, digest=bytes(16)),
    ),
)


@contextmanager
def memory_files(*contents: bytes) -> Iterator[list[int]]:
    fds = [linux.sealed_copy("test", content) for content in contents]
    yield fds
    for fd in fds:
        os.close(fd)


@contextmanager
def refused(result: ZeResult, match: str | None = None) -> Iterator[None]:
    with pytest.raises(Refused, match=match) as caught:
        yield
    assert caught.value.info.result == result


def source(offset: int, length: int) -> WeightSource:
    return WeightSource(offset=offset, length=length)


# ---------------------------------------------------------------- layout


def test_sources_lie_on_their_own_pages_at_their_offset_in_the_page() -> None:
    layout = SpaceLayout([source(0, 1), source(4097, 4095), source(100, 4000), source(8192, 4096)])
    assert layout.starts == [0, 4097, 8292, 16384]
    assert (layout.size, layout.end) == (20480, 20480)
    layout = SpaceLayout([source(0, 5000)])
    assert (layout.starts, layout.end, layout.size) == ([0], 5000, 8192)
    assert SpaceLayout([]).size == SpaceLayout([]).end == 0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 20)), max_size=14))
def test_sources_never_share_a_page(ranges: list[tuple[int, int]]) -> None:
    layout = SpaceLayout([source(*each) for each in ranges])
    end = 0
    for start, (offset, length) in zip(layout.starts, ranges, strict=True):
        assert start % 4096 == offset % 4096
        assert start - start % 4096 == end
        end = weights.page_up(start + length)
    assert layout.size == end


def test_a_range_must_lie_in_one_source() -> None:
    layout = SpaceLayout([source(100, 50), source(0, 10)])
    inside = [(100, 50), (149, 1), (150, 0), (4096, 1)]
    outside = [(100, 51), (99, 1), (140, 4000), (-1, 1), (4096, -1), (2**64, 1)]
    assert [layout.holds(*each) for each in (*inside, *outside)] == [True] * 4 + [False] * 6


def test_too_many_sources_and_ranges_beyond_any_address_space_are_refused() -> None:
    weights.check_sources([source(0, 1)] * weights.MAX_SOURCES, "model")
    with refused(ZeResult.ERROR_UNSUPPORTED_SIZE):
        weights.check_sources([source(0, 1)] * (weights.MAX_SOURCES + 1), "model")
    for offset, length in ((-1, 1), (0, 0), (0, -1), (1 << 47, 1), (0, 1 << 47)):
        with refused(ZeResult.ERROR_INVALID_SIZE):
            weights.check_sources([source(offset, length)], "model")


# ---------------------------------------------------------------- mapping


def test_the_space_maps_every_source_and_embedded_constants_behind_them() -> None:
    first, second, blob = b"a" * 5000, b"0123456789" * 1000, bytes(4096) + b"embedded"
    with memory_files(first, second, blob) as fds:
        space = WeightSpace([source(0, 5000), source(4200, 10)], fds[:2], "model", (fds[2], 4096, 8))
        assert bytes(space.view[:5000]) == first
        start = space.layout.starts[1]
        assert bytes(space.view[start : start + 10]) == second[4200:4210]
        assert bytes(space.view[space.layout.size :]) == b"embedded"
        assert space.offset_of(space.address + 10, 20) == 10
        assert space.offset_of(space.address + 4999, 2) is None
        assert space.covers(space.address + 6000)
        assert not space.covers(space.address + space.layout.size)


def test_a_space_is_unmapped_with_its_last_view() -> None:
    with memory_files(b"x" * 4096) as fds:
        space = WeightSpace([source(0, 4096)], fds, "model")
        address, view = space.address, space.view
        del space
        assert view[0] == ord("x")
        del view
        assert f"{address:x}-" not in Path("/proc/self/maps").read_text()


def test_a_range_outside_of_its_file_and_a_pipe_are_refused() -> None:
    with memory_files(b"x" * 100) as fds, refused(ZeResult.ERROR_INVALID_SIZE):
        WeightSpace([source(50, 51)], fds, "model")
    pipe = os.pipe()
    with refused(ZeResult.ERROR_INVALID_ARGUMENT, "a pipe"):
        WeightSpace([source(0, 1)], [pipe[0]], "model")
    for fd in pipe:
        os.close(fd)


# ---------------------------------------------------------------- offsets


def test_constants_are_placed_in_the_space_or_behind_it() -> None:
    space = SpaceLayout([source(0, 5000)])
    actual = weights.offsets_in_space(_REFERENCE, Placement(offsets=(4000, 16)), space, embedded=12)
    assert actual == {0: 4000, 64: 8192 + 8, 128: 16}
    assert weights.offsets_in_space(_REFERENCE, None, space, embedded=12) == {0: 0, 64: 8200, 128: 128}
    assert weights.offsets_in_space(None, None, space, embedded=0) == {}
    for offsets in ((), (0,), (0, 1, 2), (0, 4997), (-1, 0), (0, 2**63)):
        with refused(ZeResult.ERROR_INVALID_ARGUMENT):
            weights.offsets_in_space(_REFERENCE, Placement(offsets=offsets), space, embedded=12)
    with refused(ZeResult.ERROR_INVALID_NATIVE_BINARY, "'b'"):
        weights.offsets_in_space(_REFERENCE, None, space, embedded=11)


def test_only_const_layers_are_moved() -> None:
    xml = b"".join(
        [
            _LAYER % (0, b"a", b"Const", 0, 4),
            _LAYER % (1, b"prior", b"PriorBox", 64, 4),
            _LAYER % (2, b'odd" type="Const'.replace(b'"', b"&quot;"), b"Add", 64, 4),
            _LAYER % (3, b"x > y type=&quot;", b"Const", 128, 4),
            b'<layer name="none" type="Const"></layer>',
        ]
    )
    layers = const_layers(xml)
    assert [(layer.offset, layer.size) for layer in layers] == [(0, 4), (128, 4)]
    moved = with_offsets(xml, layers, [7, 1 << 40])
    assert [layer.offset for layer in const_layers(moved)] == [7, 1 << 40]
    assert with_offsets(moved, const_layers(moved), [0, 128]) == xml


def test_a_constant_that_the_blob_does_not_list_is_refused() -> None:
    xml = _LAYER % (0, b"a", b"Const", 64, 4)
    assert with_actual_offsets(xml, {64: 4096}) == _LAYER % (0, b"a", b"Const", 4096, 4)
    empty = _LAYER % (0, b"a", b"Const", 9, 0)
    assert with_actual_offsets(empty, {}) == _LAYER % (0, b"a", b"Const", 0, 0)
    with refused(ZeResult.ERROR_INVALID_NATIVE_BINARY):
        with_actual_offsets(xml, {0: 0})


def test_a_placement_survives_transport_and_malformed_ones_are_refused() -> None:
    placement = Placement(offsets=(0, 2**40, 5))
    assert Placement.decode(placement.encode()) == placement
    for other in (b"", b"\xc1", msgspec.msgpack.encode({"offsets": ["x"]}), b"\x91" * 5000):
        with refused(ZeResult.ERROR_INVALID_ARGUMENT):
            Placement.decode(other)
