"""Serialised models as untrusted bytes: every size and pointer is checked before use."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino import opset15 as ops

from softnpu.driver import GraphSource, ZeError, ZeResult
from softnpu.driver.serialized import parse
from softnpu.emulator.blob.weights import SpaceLayout, const_layers
from softnpu.emulator.common import linux
from tests.support.serialized_forms import copying_form, no_copy_form

VERSION = (7, 6)
_XML = (
    b'<net name="hand &amp; made" version="11"><layers>'
    b'<layer id="0" name="k" type="Const"><data element_type="u8" shape="%d" offset="0" size="0" />'
    b'<rt_info><attribute name="WeightsPointerAttribute" version="%s" mp="%d" ms="%d" /></rt_info>'
    b"</layer></layers></net>"
)


def stream(xml: bytes, constants: bytes = b"", version: tuple[int, int] = VERSION) -> bytearray:
    head = struct.pack("<6Q", 48, 4, 52, len(constants), 52 + len(constants), len(xml))
    return bytearray(head + struct.pack("<HH", *version) + constants + xml)


def pointed(address: int, length: int, version: bytes = b"0") -> bytearray:
    return stream(_XML % (length, version, address, length))


def parsed(data: bytes | bytearray) -> GraphSource:
    return parse(memoryview(data), VERSION, "pfnCreate2")


def refused(data: bytes | bytearray) -> ZeError:
    with pytest.raises(ZeError) as error:
        parsed(data)
    assert error.value.call == "pfnCreate2"
    return error.value


def model() -> ov.Model:
    x = ops.parameter([64], np.float32, name="x")
    constant = ops.constant(np.arange(64, dtype=np.float32), name="k")
    return ov.Model([ops.add(x, constant)], [x], "small")


def content(source: GraphSource) -> tuple[bytes, bytes]:
    """The XML, and the bytes in the weights space that its only constant refers to."""
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    (layer,) = const_layers(xml)
    starts = SpaceLayout(source.sources).starts
    for start, file in zip(starts, source.weights, strict=True):
        at = layer.offset - start
        if at >= 0 and at + layer.size <= file.length:
            return xml, os.pread(file.fd, layer.size, file.offset + at)
    raise AssertionError("the constant is in no source")


# ---------------------------------------------------------------- valid models


@pytest.mark.parametrize("write", [copying_form, no_copy_form])
def test_both_forms_give_the_constants(write: object) -> None:
    source_model = model()
    data = write(source_model, VERSION)  # type: ignore[operator]
    with parsed(data) as source:
        assert source.name == "small"
        xml, constant = content(source)
        assert constant == np.arange(64, dtype=np.float32).tobytes()
        assert b"WeightsPointerAttribute" not in xml
    if write is no_copy_form:
        assert len(data) < len(copying_form(source_model, VERSION))


# ---------------------------------------------------------------- pointers


def test_a_pointer_into_a_read_only_file_mapping_is_passed_as_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(5000) + b"constant" + bytes(5000))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        array = np.frombuffer(mapped, np.uint8)
        with parsed(pointed(array.ctypes.data + 5000, 8)) as source:
            (weights,) = source.weights
            assert os.fstat(weights.fd).st_ino == path.stat().st_ino
            assert (weights.offset, weights.length) == (5000, 8)
            assert content(source)[1] == b"constant"
        del array


def test_a_pointer_into_an_open_memory_file_is_passed_as_that_file() -> None:
    fd = linux.sealed_copy("mine", bytes(100) + b"constant")
    with mmap.mmap(fd, 108, access=mmap.ACCESS_READ) as mapped:
        array = np.frombuffer(mapped, np.uint8)
        with parsed(pointed(array.ctypes.data + 100, 8)) as source:
            assert os.fstat(source.weights[0].fd).st_ino == os.fstat(fd).st_ino
            assert content(source)[1] == b"constant"
        del array
    os.close(fd)


@pytest.mark.parametrize("access", [mmap.ACCESS_COPY, mmap.ACCESS_WRITE])
def test_writable_memory_is_copied(tmp_path: Path, access: int) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(8192))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0, access=access) as mapped:
        array = np.frombuffer(mapped, np.uint8)
        array[10:18] = np.frombuffer(b"constant", np.uint8)
        with parsed(pointed(array.ctypes.data + 10, 8)) as source:
            assert linux.has_seals(source.weights[0].fd, linux.SEALS_IMMUTABLE)
            array[10:18] = 0
            assert content(source)[1] == b"constant"
        del array


def test_private_pages_of_a_mapping_are_not_taken_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(8192))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        array = np.frombuffer(mapped, np.uint8)
        array[4096:4104] = np.frombuffer(b"constant", np.uint8)
        address = array.ctypes.data
        _protect(address, 8192)
        with parsed(pointed(address, 8192)) as source:
            assert content(source)[1] == bytes(4096) + b"constant" + bytes(4088)
        del array


def test_a_dangling_pointer_is_refused_naming_the_constant() -> None:
    top = 2**64
    for address, length in (
        (0, 8), (16, 8), (2**63, 8), (top - 4, 8), (top - 8, 8), (8, top - 8), (10**19, 10**19)
    ):  # fmt: skip
        error = refused(pointed(address, length))
        assert error.result == ZeResult.ERROR_INVALID_ARGUMENT
        assert "'k'" in error.info.object
    with mmap.mmap(-1, 4096) as mapped:
        array = np.frombuffer(mapped, np.uint8)
        # how far the memory behind it is readable is unknown, but not for a terabyte
        error = refused(pointed(array.ctypes.data, 1 << 40))
        del array
    assert error.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert "no readable memory" in error.info.found


def test_many_files_are_reduced_to_fit_a_message(tmp_path: Path) -> None:
    layers, opened = [], []
    for number in range(20):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(bytes([number]) * 4096)
        file = open(path, "rb")  # noqa: SIM115
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        opened.append((file, mapped, np.frombuffer(mapped, np.uint8)))
        layers.append(
            b'<layer id="%d" name="k%d" type="Const"><data shape="16" offset="0" size="0"/><rt_info>'
            b'<attribute name="WeightsPointerAttribute" version="0" mp="%d" ms="16"/></rt_info></layer>'
            % (number, number, opened[-1][2].ctypes.data)
        )
    with parsed(stream(b'<net name="many">' + b"".join(layers) + b"</net>")) as source:
        assert len(source.weights) == 14
        xml = os.pread(source.xml_fd, source.xml_length, 0)
        starts = SpaceLayout(source.sources).starts
        for number, layer in enumerate(const_layers(xml)):
            places = zip(starts, source.weights, strict=True)
            start, source_file = next(
                (start, weights)
                for start, weights in places
                if start <= layer.offset and layer.offset + 16 <= start + weights.length
            )
            at = source_file.offset + layer.offset - start
            assert os.pread(source_file.fd, 16, at) == bytes([number]) * 16
    while opened:
        file, mapped, array = opened.pop()
        del array
        mapped.close()
        file.close()


# ---------------------------------------------------------------- sizes


def test_inconsistent_sizes_are_refused() -> None:
    for data in (
        b"x",
        struct.pack("<HHIQ", 7, 6, 2, 2**64 - 1) + bytes(100),
        struct.pack("<HHIQ", 7, 6, 2, 100) + bytes(100),
        struct.pack("<HHIQ", 7, 6, 2, 0) + struct.pack("<Q", 0),
        struct.pack("<HHIQ4sQ", 7, 6, 2, 4, b"<net", 2**64 - 1),
        struct.pack("<HHIQ", 7, 6, 2, 4) + b"<net" + struct.pack("<Q", 1),
        struct.pack("<HHIQ", 7, 6, 2, 4) + b"<net" + struct.pack("<QB", 0, 1),
        struct.pack("<6Q", 48, 4, 52, 2**64 - 1, 52, 10) + bytes(20),
        struct.pack("<6Q", 48, 4, 52, 0, 2**64 - 1, 2) + bytes(20),
        struct.pack("<6Q", 48, 4, 52, 0, 52, 17) + bytes(20),
        struct.pack("<6Q", 48, 4, 52, 0, 52, 0) + struct.pack("<HH", 7, 6),
    ):
        assert refused(data).result == ZeResult.ERROR_INVALID_SIZE, data
    three_parts = struct.pack("<HHIQ", 7, 6, 3, 0) + bytes(100)
    assert refused(three_parts).result == ZeResult.ERROR_INVALID_ARGUMENT
    other = struct.pack("<6Q", 48, 4, 52, 0, 52, 4) + struct.pack("<HH4s", 6, 0, b"<net")
    assert refused(other).result == ZeResult.ERROR_UNSUPPORTED_VERSION


def test_a_constant_outside_of_the_stream_is_refused() -> None:
    xml = b'<net><layer name="k" type="Const"><data offset="%d" size="%d" /></layer></net>'
    for offset, size in ((0, 9), (9, 0), (2**64 - 1, 1), (1, 2**64 - 1)):
        assert refused(stream(xml % (offset, size), bytes(8))).result == ZeResult.ERROR_INVALID_SIZE


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_parsed_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(ZeError):
        parsed(data).close()
    with contextlib.suppress(ZeError):
        parsed(stream(data, data)).close()


_BASE = no_copy_form(model(), VERSION, copy_below=1000)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(_BASE) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_mutated_models_are_refused_or_parsed_and_nothing_else(changes: list[tuple[int, int]]) -> None:
    data = bytearray(_BASE)
    for at, value in changes:
        data[at] = value
    with contextlib.suppress(ZeError):
        parsed(data).close()


def _protect(address: int, size: int) -> None:
    """Make pages read-only."""
    import ctypes

    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ) == 0
