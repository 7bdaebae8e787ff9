"""The inputs of an inference as a program gives them: by key, in order, alone, or as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino.utils.data_helpers import OVDict

from softnpu.plugin.errors import InputError, InputTypeError
from softnpu.plugin.ports import PortKey, Ports

_NUMBERS = (bool, int, float)


def by_key(
    inputs: Any, ports: Ports, accepts: Callable[[Sequence[int]], bool] | None
) -> Iterable[tuple[PortKey, Any]]:
    """Return the inputs with their keys. A sequence may be shorter than `ports`: the others stay as they are.

    `accepts` says which shapes the only port takes: a list of numbers may be its data. None with more ports.
    """
    if isinstance(inputs, OVDict):  # results of another model: in their order
        inputs = inputs.to_tuple()
    if isinstance(inputs, Mapping):
        return inputs.items()
    is_data = isinstance(inputs, list) and accepts is not None and _are_numbers(inputs, accepts)
    if isinstance(inputs, (list, tuple)) and not is_data:
        if len(inputs) > len(ports):
            raise InputError(f"{ports.model}: {len(inputs)} inputs given; expected at most {len(ports)}")
        return enumerate(inputs)
    if not is_data:
        check_type(inputs, ports.model)
    if len(ports) != 1:
        raise InputError(f"{ports.model}: one array given; expected {len(ports)} inputs in a mapping or list")
    return [(0, inputs)]


def check_type(value: Any, subject: str) -> None:
    """Raise `InputTypeError` unless a value is a tensor, an array, a number, or a sequence of numbers."""
    known = (ov.Tensor, np.ndarray, np.generic, *_NUMBERS, list, tuple)
    if not isinstance(value, known) and not hasattr(value, "__array__"):
        raise InputTypeError(
            f"{subject}: {type(value).__name__} given; expected a tensor, an array or a number"
        )


def converted(value: npt.NDArray[Any], expected: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return an array in another type of numbers; None unless all its values fit, rounded if that is real."""
    if value.dtype.kind not in "biuf":
        return None
    with np.errstate(all="ignore"):
        array = value.astype(expected)
    if expected.kind == "f":
        fits = np.array_equal(np.isinf(array), np.isinf(value))
    else:
        fits = np.array_equal(array, value)
    return array if fits else None


def _are_numbers(values: list[Any], accepts: Callable[[Sequence[int]], bool]) -> bool:
    """Return whether a list of numbers, or of lists of them, has an accepted shape."""
    rows = [each if isinstance(each, list) else [each] for each in values]
    if not all(isinstance(each, _NUMBERS) for row in rows for each in row):
        return False
    try:
        return accepts(np.shape(values))
    except ValueError:  # rows of different lengths
        return False
