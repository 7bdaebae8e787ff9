"""The safetensors reader maps valid files, and refuses damaged or hostile ones by file and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softnpu.tools.models.errors import ModelError, WeightsError
from softnpu.tools.models.safetensors import read_safetensors

pytestmark = pytest.mark.quick


def _write(path: Path, header: object, data: bytes, *, header_bytes: int | None = None) -> Path:
    """Write a safetensors file; `header_bytes` lies about the length of the header."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(encoded) if header_bytes is None else header_bytes
    path.write_bytes(length.to_bytes(8, "little") + encoded + data)
    return path


def _tensor(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        read_safetensors(path)
    message = str(caught.value)
    assert str(path) in message
    assert isinstance(caught.value, ModelError)
    return message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def test_tensors_come_back_by_name_with_shape_type_and_values(file: Path) -> None:
    floats, ids = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([-1, 2**40])
    header = {
        "__metadata__": {"format": "pt"},
        "ids": _tensor("I64", [2], 24, 40),
        "floats": _tensor("F32", [2, 3], 0, 24),
        "scalar": _tensor("U8", [], 40, 41),
        "empty": _tensor("F16", [0, 7], 41, 41),
    }
    tensors = read_safetensors(_write(file, header, floats.tobytes() + ids.tobytes() + b"\x07"))
    np.testing.assert_array_equal(tensors["floats"], floats, strict=True)
    np.testing.assert_array_equal(tensors["ids"], ids, strict=True)
    assert tensors["scalar"][()] == 7
    assert tensors["empty"].shape == (0, 7)
    assert set(tensors) == {"floats", "ids", "scalar", "empty"}
    assert not tensors["floats"].flags.writeable
    file.unlink()
    np.testing.assert_array_equal(tensors["ids"], ids, strict=True)


def test_data_after_an_odd_header_length_is_still_read(file: Path) -> None:
    header = json.dumps({"a": _tensor("F64", [1], 0, 8)}).encode()
    header += b" " * (4 - len(header) % 4 + 1)
    assert read_safetensors(_write(file, header, np.float64(2.5).tobytes()))["a"].tolist() == [2.5]


@pytest.mark.parametrize("length", [100, 2**31, 2**63, 2**64 - 1])
def test_a_header_length_beyond_the_file_is_refused(file: Path, length: int) -> None:
    assert str(length) in _refusal(_write(file, {}, b"", header_bytes=length))


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"[]", "starts with b'[]'"),
        (b"", "starts with b''"),
        (b"{not json", "not JSON"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "'a'|not JSON"),
        (b'{"\xff\xfe": 1}', "not JSON"),
        ({"a": 5}, "'a'"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "data_offsets"),
        ({"a": _tensor("F32", ["1"], 0, 4)}, "'a'"),
        ({"a": _tensor("F32", [1.5], 0, 4)}, "'a'"),
        ({"a": _tensor("BF16", [2], 0, 4)}, "'BF16'"),
        ({"a": _tensor("F32", [-1], 0, -4)}, "-1"),
        ({"a": _tensor("F32", [-1, -1], 0, 4)}, "negative"),
        ({"a": _tensor("F32", [2**62, 4], 0, 4)}, str(2**66)),
        ({"a": _tensor("F32", [1] * 65, 0, 4)}, "65 dimensions"),
        ({"a": _tensor("F32", [2], 0, 4)}, "takes 8"),
        ({"a": _tensor("F32", [1], -4, 0)}, "begins at byte -4"),
        ({"a": _tensor("F32", [1], 4, 0)}, "begins at byte 4"),
        ({"a": _tensor("F32", [0], 0, 0)}, "the file has 4 of data"),
        ({"a": _tensor("F32", [1], 0, 4), "b": _tensor("F32", [1], 0, 4)}, "'b' begins at byte 0"),
        ({"a": _tensor("U8", [1], 0, 1), "b": _tensor("U8", [2], 2, 4)}, "'b' begins at byte 2"),
        ({"a": _tensor("F32", [2], 0, 8)}, "ends at byte 8 of 4"),
    ],
)
def test_an_inconsistent_header_is_refused(file: Path, header: object, told: str) -> None:
    message = _refusal(_write(file, header, b"\x00" * 4))
    assert any(part in message for part in told.split("|"))
    assert len(message) < 2000


def test_a_truncated_file_is_refused_at_every_length(file: Path) -> None:
    whole = _write(file, {"a": _tensor("F32", [2], 0, 8)}, b"\x00" * 8).read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        _refusal(file)
