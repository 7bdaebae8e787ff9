"""The key of a cache entry: the model's content, and everything else that changes the result.

The compiler builds the key from these parts, `softnpu cache explain` compares them one by one.
"""

from __future__ import annotations

import functools
import os
import platform as machine
from collections.abc import Mapping

import msgspec
from blake3 import blake3

from softnpu.emulator.blob import container
from softnpu.emulator.common import processor


@functools.cache
def openvino_version() -> str:
    """Return OpenVINO's version without loading it, which takes a second and a hit does not need."""
    import importlib.metadata  # an engine needs nothing of it

    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return _location("openvino")


def _location(package: str) -> str:
    """Return the location and age of an uninstalled package, in place of its version."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return "none"
    return f"{spec.origin} {os.stat(spec.origin).st_mtime_ns}"


@functools.cache
def host() -> str:
    """Return the processor's architecture and capabilities, which decide its precisions."""
    return f"{machine.machine()} {blake3(' '.join(sorted(processor.flags())).encode()).hexdigest(4)}"


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the content. `config` holds effective values, `shapes` extents by input name.

    `flags` are those of the graph that change the blob. `name` is in it because the blob repeats it.
    """

    name: str
    platform: str
    compiler: str
    config: dict[str, str]
    shapes: dict[str, tuple[int, ...]] = {}
    flags: int = 0
    openvino: str = msgspec.field(default_factory=openvino_version)
    container: str = f"{container.MAJOR}.{container.MINOR}"
    host: str = msgspec.field(default_factory=host)

    def encoded(self) -> bytes:
        """Return the bytes that go into the key; independent of the order of options."""
        return _encoder.encode(self)

    def description(self) -> dict[str, str]:
        """Return the parts as the note of an entry lists them."""
        return {
            "model": self.name,
            "platform": self.platform,
            "version.compiler": self.compiler,
            "version.openvino": self.openvino,
            "version.container": self.container,
            "version.host": self.host,
            "flags": str(self.flags),
            **{f"config.{name}": value for name, value in sorted(self.config.items())},
            **{f"shape.{name}": ",".join(map(str, shape)) for name, shape in sorted(self.shapes.items())},
        }


_encoder = msgspec.json.Encoder(order="sorted")


def key(input_digest: bytes, configuration: bytes | Mapping[str, str]) -> str:
    """Return the name of an entry: 64 characters over the model, 16 over all else that makes the result."""
    if not isinstance(configuration, bytes):
        configuration = _encoder.encode(configuration)
    return blake3(input_digest).hexdigest() + blake3(configuration).hexdigest(8)


def input_digest(xml: bytes | memoryview, weights_digest: bytes) -> bytes:
    """Return the digest of a model: its XML, and the blake3 of its weights (empty without weights)."""
    return blake3(blake3(xml, max_threads=blake3.AUTO).digest() + weights_digest).digest()


def prepare() -> None:
    """Look up the common parts of all keys, so that no job has to wait for them."""
    openvino_version()
    host()


def differences(parts: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """The names of the parts that differ, in the order of `parts`, then those that only `others` has."""
    names = [*parts, *(name for name in others if name not in parts)]
    return [name for name in names if parts.get(name) != others.get(name)]
