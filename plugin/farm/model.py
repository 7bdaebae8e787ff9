"""A model in a cluster: its bytes in Ray's object store, and a digest that identifies it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softnpu.emulator.blob.container import MAGIC
from softnpu.farm.errors import FarmError

_WEIGHTS, _COMPILED = "model.bin", "model.blob"
Files = dict[str, bytes]


@dataclass(frozen=True)
class Model:
    """The model of a `Predictor`; made once, used by any number of them.

    `reference`: its files in Ray's object store, kept while the process that made it lives. `config`,
    `shapes`: properties and static shapes for its compilation.
    """

    name: str
    digest: str
    main: str
    reference: Any = field(repr=False)
    config: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def is_compiled(self) -> bool:
        """Whether it is a compiled model, for one platform."""
        return self.main == _COMPILED

    @classmethod
    def of(
        cls,
        source: Any,
        config: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Model:
        """Read a model file of OpenVINO, an `openvino.Model`, or a compiled model (a file, or bytes).

        Read in this process, at once.
        Raises `FarmError` for other types, `OSError` for a file that cannot be read.
        """
        import ray

        if isinstance(source, Model):
            return source
        name, main, files = _read(source)
        if main == _COMPILED:
            _check_compiled(name, files[main], {**(config or {}), **(shapes or {})})
        digest = hashlib.sha256()
        for part, content in sorted(files.items()):
            digest.update(f"{part}:{len(content)}\n".encode())
            digest.update(content)
        reference = ray.put(files)
        return cls(name, digest.hexdigest()[:32], main, reference, dict(config or {}), dict(shapes or {}))

    def key(self, platform: str) -> str:
        """Return the compiled model's key: content, properties, shapes, platform and compiler."""
        import importlib.metadata

        versions = [importlib.metadata.version(package) for package in ("softnpu", "openvino")]
        text = json.dumps(
            [self.digest, sorted(self.config.items()), sorted(self.shapes.items()), platform, versions]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def written(files: Files, main: str, folder: Path) -> Path:
    """Write the model's file, and those beside it, into a folder; return its path."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / main


def _read(source: Any) -> tuple[str, str, Files]:
    """Return name, main file, and the files by name."""
    if isinstance(source, bytes | bytearray | memoryview):
        return "compiled model", _COMPILED, {_COMPILED: bytes(source)}
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.suffix == ".blob":
            return path.stem, _COMPILED, {_COMPILED: path.read_bytes()}
        main = f"model{path.suffix}"
        files = {main: path.read_bytes()}
        weights = path.with_suffix(".bin")
        if path.suffix == ".xml" and weights.exists():
            files[_WEIGHTS] = weights.read_bytes()
        return path.stem, main, files
    import openvino

    if isinstance(source, openvino.Model):
        with tempfile.TemporaryDirectory(prefix="softnpu-farm-") as folder:
            xml = Path(folder, "model.xml")
            openvino.save_model(source, xml, compress_to_fp16=False)
            files = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
        return source.friendly_name, "model.xml", files
    raise FarmError(
        "model",
        found=f"a {type(source).__name__}",
        expected="a path, an openvino.Model, or the bytes of a compiled model",
    )


def _check_compiled(name: str, blob: bytes, given: Mapping[str, object]) -> None:
    """Reject files that are not compiled models, and compile-time options for compiled ones."""
    if not blob.startswith(MAGIC):
        raise FarmError(
            f"model {name}",
            found=f"{len(blob)} bytes that begin with {blob[:8]!r}",
            expected="a compiled model, as softnpu compile and export_model write it",
        )
    if given:
        raise FarmError(
            f"model {name}", found=f"{', '.join(given)} for a compiled model", expected="the model's file"
        )
