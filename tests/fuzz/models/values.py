"""Numbers for tensors of any element type: ordinary ones, and edge cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from tests.fuzz.dice import Dice

Array = npt.NDArray[Any]

FLOATS = ("f32", "f16", "bf16", "f64")
INTEGERS = ("i32", "i64", "u8", "i8", "i16", "u16", "u32", "u64")
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "boolean")
SMALL = ("f8e4m3", "f8e5m2", "i4", "u4", "u1")
"""Types limited to constants and inner values: softnpu refuses them as inputs and outputs."""
NARROW = tuple(kind for kind in SMALL if kind != "u1")
"""Valid conversion targets: for u1, OpenVINO's CPU device writes out of bounds."""

_NUMPY = {
    "f32": np.float32, "f16": np.float16, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "boolean": np.bool_,
}  # fmt: skip
_ODD_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e-42, 6e-8, 65504.0, 65520.0,
    3.4e38, 16777217.0, 2147483648.0, 1e10, -1e10, 255.5, 256.0, 127.5, -128.5, math.pi,
)  # fmt: skip
_TAME_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 2.5, -2.5, 1e-30, 127.5, math.pi, 16777216.0)
_ODD_INTEGERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    -128,
    32768,
    65535,
    2**24 + 1,
    2**31 - 1,
    -(2**31),
    2**40 + 1,
)


def type_named(name: str) -> ov.Type:
    """Return the element type of that name."""
    found: ov.Type = getattr(ov.Type, name)
    return found


def name_of(kind: ov.Type) -> str:
    """Return the name for `type_named`."""
    return str(kind.get_type_name())


def tensor(
    dice: Dice, kind: str, shape: Sequence[int], bounds: tuple[int, int] | None = None, wild: bool = False
) -> ov.Tensor:
    """Return a tensor of random numbers within `bounds` (inclusive) if given; `wild`: infinities too."""
    made = ov.Tensor(type_named(kind), ov.Shape(list(shape)))
    if not made.byte_size:
        return made
    generator = np.random.Generator(np.random.PCG64(dice.getrandbits(32)))
    count = math.prod(shape)
    if kind in SMALL:
        data = generator.integers(0, 256, made.byte_size).astype(np.uint8)
        if kind.startswith("f8"):
            data &= 0xBF if kind == "f8e4m3" else 0xB7  # no infinities, NaN or large numbers
    elif kind == "bf16":
        data = (_floats(dice, generator, count, wild).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    elif kind in FLOATS:
        with np.errstate(over="ignore"):
            data = _floats(dice, generator, count, wild, bounds).astype(_NUMPY[kind])
    elif kind == "boolean":
        data = generator.integers(0, 2, count).astype(np.bool_)
    else:
        data = _integers(dice, generator, count, np.dtype(_NUMPY[kind]), bounds, wild)
    place = np.asarray(made.data)
    place.reshape(-1).view(np.uint8)[:] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    return made


def of_array(data: Array) -> ov.Tensor:
    """Return a tensor with a copy of an array, of its type; also of scalars and empty ones."""
    made = ov.Tensor(ov.Type(data.dtype), ov.Shape(list(data.shape)))
    if data.size:
        np.asarray(made.data).reshape(-1)[:] = data.reshape(-1)
    return made


def bytes_of(found: ov.Tensor) -> bytes:
    """Return the bytes of a tensor of any type."""
    if not found.size:
        return b""
    return np.ascontiguousarray(found.data).tobytes()


def _floats(
    dice: Dice, generator: np.random.Generator, count: int, wild: bool, bounds: tuple[int, int] | None = None
) -> Array:
    if bounds is not None:
        return generator.uniform(bounds[0], bounds[1], count)
    way = dice.randrange(10)
    if way < 5:
        return generator.normal(0, 1.5, count)
    if way == 5:
        return generator.integers(-4, 5, count).astype(np.float64)
    if way == 6:
        return np.full(count, dice.pick((0.0, 1.0, -1.0, 0.3)))
    if way == 7:
        return generator.normal(0, 300, count)
    odd = generator.choice(np.array(_ODD_FLOATS if wild else _TAME_FLOATS), count)
    return np.where(generator.random(count) < 0.5, odd, generator.normal(0, 2, count))


def _integers(
    dice: Dice,
    generator: np.random.Generator,
    count: int,
    kind: np.dtype[Any],
    bounds: tuple[int, int] | None,
    wild: bool,
) -> Array:
    if bounds is not None:
        return generator.integers(bounds[0], bounds[1], count, endpoint=True).astype(kind)
    info = np.iinfo(kind)
    way = dice.randrange(8)
    if way < 5:
        return generator.integers(max(info.min, -9), 10, count).astype(kind)
    if way == 5:
        return np.full(count, dice.pick((0, 1, 3)), kind)
    if way == 6 or not wild:
        return generator.integers(max(info.min, -100), 101, count).astype(kind)
    fitting = [value for value in _ODD_INTEGERS if info.min <= value <= info.max]
    odd = generator.choice(np.array([*fitting, info.min, info.max], dtype=kind), count)
    return np.where(generator.random(count) < 0.5, odd, generator.integers(0, 9, count).astype(kind)).astype(
        kind
    )
