"""Rounding to f16 by the extension: as an operation of a model, of arrays, and its counts."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.emulator.arithmetic import library

OPERATION = "DeviceRound"


class Count(NamedTuple):
    """The counts of one rounding: the largest finite magnitude before it, and how many values became what."""

    largest: float
    overflows: int
    underflows: int
    nans: int


@functools.cache
def _loaded() -> tuple[ov.utils.node_factory.NodeFactory, ctypes.CDLL]:
    from openvino.utils.node_factory import NodeFactory

    factory = NodeFactory()
    with library.opened() as path:
        factory.add_extension(path)
        return factory, ctypes.CDLL(path)


def _factory() -> ov.utils.node_factory.NodeFactory:
    return _loaded()[0]


@functools.cache
def _functions() -> ctypes.CDLL:
    functions = _loaded()[1]
    pointer = ctypes.c_void_p
    functions.softnpu_round.argtypes = (pointer, pointer, ctypes.c_int64, ctypes.c_bool, ctypes.c_bool)
    functions.softnpu_round.restype = None
    functions.softnpu_take_counter.argtypes = (ctypes.c_int64, pointer, pointer)
    functions.softnpu_take_counter.restype = None
    return functions


def operation(value: ov.Output, saturate: bool, name: str, counter: int = -1) -> ov.Output:
    """Return the rounded `value`. `name` names the new operation; `counter` numbers its counts, -1: none."""
    node = _factory().create(OPERATION, [value], {"saturate": saturate, "counter": counter})
    node.set_friendly_name(name)
    return node.output(0)


def rounded(
    values: npt.NDArray[np.float32], saturate: bool, portably: bool = False
) -> npt.NDArray[np.float32]:
    """Return the nearest f16 of each value, ties to even. `portably`: without native instructions."""
    source = np.ascontiguousarray(values, dtype=np.float32)
    result = np.empty_like(source)
    _functions().softnpu_round(source.ctypes.data, result.ctypes.data, source.size, saturate, portably)
    return result.reshape(np.shape(values))


def take_count(counter: int) -> Count:
    """Return the counts of the roundings with this counter since the last call."""
    largest = ctypes.c_float()
    counts = (ctypes.c_uint64 * 3)()
    _functions().softnpu_take_counter(counter, ctypes.byref(largest), ctypes.byref(counts))
    return Count(largest.value, *counts)
