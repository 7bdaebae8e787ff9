"""The weights space, canonical offsets and placements: where constants lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
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


def refusal(error: pytest.ExceptionInfo[Refused]) -> ZeResult:
    return ZeResult(error.value.info.result)


# ---------------------------------------------------------------- layout


def test_sources_lie_on_pages_of_their_own_at_their_offset_in_the_page() -> None:
    sources = [
        WeightSource(offset=0, length=1),
        WeightSource(offset=4097, length=4095),
        WeightSource(offset=100, length=4000),
        WeightSource(offset=8192, length=4096),
    ]
    layout = SpaceLayout(sources)
    assert layout.starts == [0, 4097, 8292, 16384]
    assert (layout.size, layout.end) == (20480, 20480)


def test_one_file_from_its_start_has_the_offsets_of_the_file() -> None:
    layout = SpaceLayout([WeightSource(offset=0, length=5000)])
    assert (layout.starts, layout.end, layout.size) == ([0], 5000, 8192)
    assert SpaceLayout([]).size == SpaceLayout([]).end == 0


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 20)), max_size=14))
def test_sources_never_share_a_page(ranges: list[tuple[int, int]]) -> None:
    sources = [WeightSource(offset=offset, length=length) for offset, length in ranges]
    layout = SpaceLayout(sources)
    end = 0
    for start, source in zip(layout.starts, sources, strict=True):
        assert start % 4096 == source.offset % 4096
        assert start - start % 4096 == end
        end = weights.page_up(start + source.length)
    assert layout.size == end


@pytest.mark.parametrize(
    ("offset", "length", "inside"),
    [(100, 50, True), (100, 51, False), (99, 1, False), (149, 1, True), (150, 0, True), (4096, 1, True),
     (140, 4000, False), (-1, 1, False), (4096, -1, False), (2**64, 1, False)],
)  # fmt: skip
def test_a_range_has_to_lie_in_one_source(offset: int, length: int, inside: bool) -> None:
    layout = SpaceLayout([WeightSource(offset=100, length=50), WeightSource(offset=0, length=10)])
    assert layout.holds(offset, length) is inside


def test_more_sources_than_a_frame_carries_are_refused() -> None:
    source = WeightSource(offset=0, length=1)
    weights.check_sources([source] * weights.MAX_SOURCES, "model")
    with pytest.raises(Refused) as error:
        weights.check_sources([source] * (weights.MAX_SOURCES + 1), "model")
    assert refusal(error) == ZeResult.ERROR_UNSUPPORTED_SIZE


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 0), (0, -1), (1 << 47, 1), (0, 1 << 47)])
def test_a_range_that_no_address_space_holds_is_refused(offset: int, length: int) -> None:
    with pytest.raises(Refused) as error:
        weights.check_sources([WeightSource(offset=offset, length=length)], "model")
    assert refusal(error) == ZeResult.ERROR_INVALID_SIZE


# ---------------------------------------------------------------- mapping


def test_the_space_shows_every_source_and_what_lies_behind_them() -> None:
    first, second, blob = b"a" * 5000, b"0123456789" * 1000, bytes(4096) + b"embedded"
    with memory_files(first, second, blob) as fds:
        sources = [WeightSource(offset=0, length=5000), WeightSource(offset=4200, length=10)]
        space = WeightSpace(sources, fds[:2], "model", (fds[2], 4096, 8))
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
        space = WeightSpace([WeightSource(offset=0, length=4096)], fds, "model")
        address, view = space.address, space.view
        del space
        assert view[0] == ord("x")
        del view
        assert f"{address:x}-" not in Path("/proc/self/maps").read_text()


def test_what_does_not_lie_in_its_file_is_refused() -> None:
    with memory_files(b"x" * 100) as fds, pytest.raises(Refused) as error:
        WeightSpace([WeightSource(offset=50, length=51)], fds, "model")
    assert refusal(error) == ZeResult.ERROR_INVALID_SIZE


def test_a_pipe_is_refused() -> None:
    reader, writer = os.pipe()
    with pytest.raises(Refused, match="a pipe") as error:
        WeightSpace([WeightSource(offset=0, length=1)], [reader], "model")
    assert refusal(error) == ZeResult.ERROR_INVALID_ARGUMENT
    os.close(reader)
    os.close(writer)


# ---------------------------------------------------------------- offsets


def test_constants_are_placed_in_the_space_or_behind_it() -> None:
    space = SpaceLayout([WeightSource(offset=0, length=5000)])
    actual = weights.offsets_in_space(_REFERENCE, Placement(offsets=(4000, 16)), space, embedded=12)
    assert actual == {0: 4000, 64: 8192 + 8, 128: 16}
    assert weights.offsets_in_space(_REFERENCE, None, space, embedded=12) == {0: 0, 64: 8200, 128: 128}
    assert weights.offsets_in_space(None, None, space, embedded=0) == {}


@pytest.mark.parametrize("offsets", [(), (0,), (0, 1, 2), (0, 4997), (-1, 0), (0, 2**63)])
def test_a_placement_that_does_not_fit_is_refused(offsets: tuple[int, ...]) -> None:
    space = SpaceLayout([WeightSource(offset=0, length=5000)])
    with pytest.raises(Refused) as error:
        weights.offsets_in_space(_REFERENCE, Placement(offsets=offsets), space, embedded=12)
    assert refusal(error) == ZeResult.ERROR_INVALID_ARGUMENT


def test_an_embedded_constant_outside_of_its_section_is_the_fault_of_the_blob() -> None:
    space = SpaceLayout([WeightSource(offset=0, length=5000)])
    with pytest.raises(Refused, match="'b'") as error:
        weights.offsets_in_space(_REFERENCE, None, space, embedded=11)
    assert refusal(error) == ZeResult.ERROR_INVALID_NATIVE_BINARY


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
    assert with_actual_offsets(_LAYER % (0, b"a", b"Const", 9, 0), {}) == _LAYER % (0, b"a", b"Const", 0, 0)
    with pytest.raises(Refused) as error:
        with_actual_offsets(xml, {0: 0})
    assert refusal(error) == ZeResult.ERROR_INVALID_NATIVE_BINARY


def test_a_placement_survives_its_journey_and_nothing_else_is_one() -> None:
    placement = Placement(offsets=(0, 2**40, 5))
    assert Placement.decode(placement.encode()) == placement
    for other in (b"", b"\xc1", msgspec.msgpack.encode({"offsets": ["x"]}), b"\x91" * 5000):
        with pytest.raises(Refused) as error:
            Placement.decode(other)
        assert refusal(error) == ZeResult.ERROR_INVALID_ARGUMENT
