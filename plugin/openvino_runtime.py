"""OpenVINO's own runtime in this process: it reads models and knows the host's processor."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.plugin.errors import ModelError, ModelTypeError


@functools.cache
def runtime() -> Any:
    """Return the `openvino.Core` of this process, made at first use."""
    return ov.Core()


_extended = False
_extending = threading.Lock()


def add_extension(extension: Any) -> None:
    """Add operations or conversions of the program to what OpenVINO reads. Raises OpenVINO's errors."""
    global _extended
    with _extending:
        before, _extended = _extended, True  # before it takes effect
        try:
            runtime().add_extension(extension)
        except BaseException:
            _extended = before
            raise


def is_extended() -> bool:
    """Return whether the program has added extensions, which may change what OpenVINO reads."""
    return _extended


@functools.cache
def cpu_capabilities() -> tuple[str, ...]:
    """Return OPTIMIZATION_CAPABILITIES of the CPU device, which the engine uses on the same machine."""
    return tuple(runtime().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def read_model(model: Any, weights: Any = None, config: Mapping[str, Any] | None = None) -> ov.Model:
    """Read a model in a file (a `Path`) or in memory. Raises `ModelError` with OpenVINO's reason."""
    for file in (model, weights):
        if isinstance(file, Path) and not file.exists():
            raise ModelError(f"model {file}: no such file; expected a model that OpenVINO reads")
    files = (model,) if weights is None else (model, weights)
    try:
        return runtime().read_model(*files, config=dict(config or {}))
    except (*openvino_errors.OPENVINO_ERRORS, TypeError) as failure:
        name = model if isinstance(model, Path) else "in memory"
        reason = openvino_errors.reason(failure)
        kind = ModelTypeError if isinstance(failure, TypeError) else ModelError
        raise kind(f"model {name}: OpenVINO cannot read it: {reason}") from failure
