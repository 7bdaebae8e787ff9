"""The models inside a model: the bodies of If, Loop and TensorIterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def bodies_of(operation: Any) -> list[Any]:
    """Return the bodies of one operation: then and else of an If; none of most types."""
    kind = operation.get_type_name()
    if kind == "If":
        return [operation.get_function(index) for index in (0, 1)]
    return [operation.get_function()] if kind in {"Loop", "TensorIterator"} else []


def all_bodies(model: Any) -> Iterator[Any]:
    """Return the bodies of a model and those within them, from outside to inside."""
    for operation in model.get_ordered_ops():
        for body in bodies_of(operation):
            yield body
            yield from all_bodies(body)
