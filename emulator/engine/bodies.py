"""The models inside a model: those of If, Loop and TensorIterator."""

from __future__ import annotations

from typing import Any

_BODIES = {"If": 2, "Loop": 1, "TensorIterator": 1}


def bodies(model: Any) -> list[Any]:
    """Return the bodies of a model and those within them."""
    inner = []
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        for index in range(_BODIES.get(kind, 0)):
            body = operation.get_function(index) if kind == "If" else operation.get_function()
            inner += [body, *bodies(body)]
    return inner


def with_bodies(model: Any) -> list[Any]:
    """Return a model and all that are inside it."""
    return [model, *bodies(model)]
