"""Bounds in the `shapes` of `compile_model`: `-1`, `"1..8"`, or a whole `openvino.PartialShape`.

The compiler takes static shapes only, so a copy of the model gets the bounds before it is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.emulator.common import model_texts
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.plugin.errors import CompileError
from softnpu.plugin.openvino_runtime import read_model

Shapes = Mapping[str, Sequence[Any]]


def with_bounds(
    model: ov.Model | str | Path, weights: Path | None, shapes: Shapes | None
) -> tuple[ov.Model | str | Path, Mapping[str, Sequence[int]] | None]:
    """Return the bounded model, and the static shapes for the compiler; both unchanged without bounds.

    Raises `ModelError` for a file that cannot be read, `CompileError` for invalid bounds.
    """
    if not shapes or not any(_is_dynamic(shape) for shape in shapes.values()):
        return model, shapes
    if isinstance(model, ov.Model):
        bounded = model.clone()
    else:
        path = Path(model)
        bounded = read_model(path, weights)
        bounded.set_friendly_name(path.stem)
    name = model_texts.friendly_name(bounded)
    wanted = {_find(bounded, key): _partial(name, key, shape) for key, shape in shapes.items()}
    try:
        bounded.reshape(wanted)
    except RuntimeError as failure:
        requested = ", ".join(f"'{key}' {shape}" for key, shape in zip(shapes, wanted.values(), strict=True))
        raise CompileError(
            f"model '{name}': shapes {requested}: {openvino_errors.reason(failure)}; expected shapes that"
            " the model can take"
        ) from failure
    return bounded, None


def _is_dynamic(shape: Any) -> bool:
    if isinstance(shape, (str, ov.PartialShape)):
        return True
    return any(isinstance(dim, (str, ov.Dimension)) or dim == -1 for dim in shape)


def _partial(model: str, key: str, shape: Any) -> ov.PartialShape:
    try:
        if isinstance(shape, (str, ov.PartialShape)):
            return ov.PartialShape(shape)
        return ov.PartialShape([ov.Dimension(dim) if isinstance(dim, str) else dim for dim in shape])
    except (RuntimeError, TypeError, ValueError) as failure:
        raise CompileError(
            f"model '{model}', input '{key}': shape {shape!r}; expected numbers, -1, or bounds: '1..8'"
        ) from failure


def _find(model: ov.Model, key: str) -> int:
    for position, port in enumerate(model.inputs):
        if key in model_texts.tensor_names(port) or key == model_texts.friendly_name(port.node):
            return position
    names = ", ".join(
        f"'{min(model_texts.tensor_names(port), default=model_texts.friendly_name(port.node))}'"
        for port in model.inputs
    )
    name = model_texts.friendly_name(model)
    raise CompileError(f"model '{name}', shape for input '{key}': no such input; expected one of {names}")
