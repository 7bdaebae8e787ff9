"""Models on their way to the compiler: what the user has becomes descriptors of XML and weights."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from softnpu.driver import GraphSource, ZeError
from softnpu.emulator.interface.result import Refused
from softnpu.plugin import serializer
from softnpu.plugin.errors import ModelError
from softnpu.plugin.openvino_runtime import runtime


def from_path(path: Path, weights: Path | None = None) -> GraphSource:
    """A model in a file. An IR goes as it is, by descriptor; other formats are read by OpenVINO first.

    Raises `ModelError` when the file is missing or is no model.
    """
    if path.suffix != ".xml":
        return from_model(read_model(path, weights), path.stem)
    try:
        return GraphSource.from_ir(path, weights)
    except OSError as failure:
        raise ModelError(f"model {path}: {failure.strerror}; expected a readable IR file") from failure


def read_model(path: Path, weights: Path | None = None) -> ov.Model:
    """A model in any format that OpenVINO reads. Raises `ModelError` with OpenVINO's reason."""
    for file in (path, weights):
        if file is not None and not file.exists():
            raise ModelError(f"model {file}: no such file; expected a model that OpenVINO reads")
    try:
        return runtime().read_model(path) if weights is None else runtime().read_model(path, weights)
    except RuntimeError as failure:
        lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
        reason = lines[-1] if lines else "no reason given"
        raise ModelError(f"model {path}: OpenVINO cannot read it: {reason}") from failure


def from_model(model: ov.Model, name: str) -> GraphSource:
    """An `openvino.Model` in memory. Constants that OpenVINO maps from a file go as that file's descriptor;
    all others are copied once, into a sealed memory file.

    Raises `ModelError` for a model that cannot be written.
    """
    try:
        return serializer.by_descriptor(model, name)
    except (RuntimeError, Refused, ZeError, OSError) as failure:
        raise ModelError(f"model '{name}': it cannot be serialised: {failure}") from failure
