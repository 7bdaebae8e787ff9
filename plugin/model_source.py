"""Models on their way to the compiler: what the user has becomes descriptors of XML and weights."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import openvino as ov

from softnpu.driver import GraphSource
from softnpu.emulator.interface import linux
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
    """An `openvino.Model` in memory: its constants are copied once, into a sealed memory file."""
    xml_fd = linux.memfd("ir")
    weights_fd = linux.memfd("weights")
    try:
        # OpenVINO wants file names, and a name that ends in .xml: links to the memory files serve
        with tempfile.TemporaryDirectory(prefix="softnpu-") as folder:
            xml, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
            xml.symlink_to(f"/proc/{os.getpid()}/fd/{xml_fd}")
            weights.symlink_to(f"/proc/{os.getpid()}/fd/{weights_fd}")
            ov.serialize(model, xml, weights)
        for fd in (xml_fd, weights_fd):
            linux.seal(fd, linux.SEALS_IMMUTABLE)
        return GraphSource.from_descriptors(name, xml_fd, weights_fd)
    except RuntimeError as failure:
        os.close(xml_fd)
        os.close(weights_fd)
        raise ModelError(f"model '{name}': it cannot be serialised: {failure}") from failure
