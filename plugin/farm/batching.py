"""Batch rows as model inputs: which rows an inference computes, and its results.

A model whose first dimension is fixed to B gets B rows at a time: the last inference is padded with copies of
the last row, whose results are dropped. A model with a dynamic first dimension gets all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softnpu.farm.errors import BatchError, FarmError

Array = np.ndarray[Any, Any]
Rows = dict[str, Array]


@dataclass(frozen=True)
class Tensor:
    """An input or output. `dims` after the first; -1 is a dynamic one. `names`: all of its names."""

    name: str
    names: frozenset[str]
    dtype: np.dtype[Any]
    dims: tuple[int, ...]


class BatchRules:
    """How rows become inferences of a compiled model. `size`: rows of an inference, 0: any number."""

    def __init__(self, model: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._model = model
        first = {_first(port) for port in (*inputs, *outputs)}
        if len(first) != 1 or None in first:
            shapes = ", ".join(f"{_name(port, at)} {port.partial_shape}" for at, port in enumerate(inputs))
            results = ", ".join(f"{_name(port, at)} {port.partial_shape}" for at, port in enumerate(outputs))
            raise FarmError(
                f"model {model}",
                found=f"inputs {shapes}; outputs {results}",
                expected="the same first dimension in all of them, that of the batch",
                hint="compile it with other shapes: Predictor(model, shapes=...)",
            )
        (size,) = first
        assert size is not None
        self.size = max(0, size)
        self.inputs = [_tensor(port, at, "input") for at, port in enumerate(inputs)]
        self.outputs = [_tensor(port, at, "output") for at, port in enumerate(outputs)]

    def checked(self, batch: Any, keep: Sequence[str]) -> tuple[Rows, int]:
        """Return a batch's inputs by first name, and its row count. Raises `BatchError` before any effect."""
        if not isinstance(batch, Mapping):
            if len(self.inputs) != 1 or not isinstance(batch, np.ndarray):
                raise self._error(f"a {type(batch).__name__}", f"arrays by name: {self._names()}")
            batch = {self.inputs[0].name: batch}
        rows: Rows = {}
        used = set()
        for tensor in self.inputs:
            given = sorted(tensor.names & batch.keys())
            if len(given) != 1:
                found = f"columns {', '.join(map(str, batch)) or 'none'}"
                raise self._error(found, f"one column '{tensor.name}'; all inputs: {self._names()}")
            used.add(given[0])
            rows[tensor.name] = self._array(tensor, batch[given[0]])
        if more := sorted(set(batch) - used - set(keep)):
            raise self._error(
                f"columns {', '.join(more)} beside the inputs",
                f"{self._names()}",
                "name them in keep, to have them beside the outputs, or drop them before",
            )
        if missing := sorted(set(keep) - set(batch)):
            raise self._error(f"no column {', '.join(missing)}", "the columns of keep")
        counts = {len(array) for array in rows.values()}
        if len(counts) > 1:
            raise self._error(f"inputs of {sorted(counts)} rows", "the same number in all of them")
        return rows, counts.pop()

    def parts(self, count: int) -> Iterator[slice]:
        """Return the rows of each inference."""
        if not self.size:
            yield from [slice(0, count)] if count else []
            return
        for begin in range(0, count, self.size):
            yield slice(begin, min(begin + self.size, count))

    def fill(self, target: Array, rows: Array) -> None:
        """Copy rows into an input of fixed size, padded with copies of the last one."""
        target[: len(rows)] = rows
        target[len(rows) :] = rows[-1:]

    def empty(self) -> Rows:
        """Return the outputs for zero rows."""
        return {
            tensor.name: np.empty((0, *(max(0, dim) for dim in tensor.dims)), tensor.dtype)
            for tensor in self.outputs
        }

    def _array(self, tensor: Tensor, value: Any) -> Array:
        try:
            array = np.asarray(value)
        except ValueError as failure:
            raise self._error(
                f"column '{tensor.name}' has rows of different shapes", "one shape"
            ) from failure
        expected = f"[rows, {', '.join('?' if dim < 0 else str(dim) for dim in tensor.dims)}]"
        fits = array.ndim == len(tensor.dims) + 1 and all(
            dim in (-1, size) for dim, size in zip(tensor.dims, array.shape[1:], strict=True)
        )
        if not fits:
            raise self._error(
                f"column '{tensor.name}' of shape {list(array.shape)}, {array.dtype}",
                f"{expected}, {tensor.dtype}",
            )
        if not np.can_cast(array.dtype, tensor.dtype, "safe"):
            raise self._error(
                f"column '{tensor.name}' of {array.dtype}",
                f"{tensor.dtype}",
                f"convert it where that is right: .astype('{tensor.dtype}')",
            )
        return array

    def _names(self) -> str:
        return ", ".join(tensor.name for tensor in self.inputs)

    def _error(self, found: str, expected: str, hint: str = "") -> BatchError:
        return BatchError(f"batch for model {self._model}", found=found, expected=expected, hint=hint)


def _first(port: Any) -> int | None:
    """Return the first dimension: its size, -1 if it is dynamic, None without one."""
    shape = port.partial_shape
    if shape.rank.is_dynamic or not len(shape):
        return None
    return -1 if shape[0].is_dynamic else int(shape[0].get_length())


def _tensor(port: Any, index: int, kind: str) -> Tensor:
    name = _name(port, index, kind)
    dims = tuple(-1 if dim.is_dynamic else int(dim.get_length()) for dim in list(port.partial_shape)[1:])
    return Tensor(name, frozenset({name, *port.get_names()}), port.get_element_type().to_dtype(), dims)


def _name(port: Any, index: int, kind: str = "port") -> str:
    return min(port.get_names(), default=f"{kind}_{index}") if port.get_names() else f"{kind}_{index}"
