"""Tell the device what it will load while the program still reads it.

The name of a graph that nobody has compiled yet is a digest of what files it comes from and how it is
compiled. The device notes what it loads under such a name, and begins with that when it hears the name again.
Loading itself goes by the content: a file that has changed without its times costs time and nothing else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from softnpu.driver import Context
from softnpu.driver.graph_creation import expect


def of_model(
    context: Context,
    model: Any,
    weights: Path | None,
    config: Mapping[str, str],
    shapes: Mapping[str, Any] | None,
) -> bytes:
    """Announce the graph of a model that will be compiled; return its name, empty for one in memory."""
    if not isinstance(model, str | os.PathLike):
        return b""
    path = Path(model)
    if weights is None and path.suffix == ".xml":
        weights = path.with_suffix(".bin")
    extents = {name: str(shape) for name, shape in (shapes or {}).items()}
    return _announce(context, [path] if weights is None else [path, weights], [dict(config), extents])


def of_exported(context: Context, source: Any) -> bytes:
    """Announce the graph of an exported model; return its name, empty for one that is not given as a path."""
    return _announce(context, [Path(source)], []) if isinstance(source, str | os.PathLike) else b""


def _announce(context: Context, paths: Sequence[Path], parts: Sequence[dict[str, str]]) -> bytes:
    files = []
    for path in paths:
        try:
            info = path.stat()
        except (OSError, ValueError):
            continue  # who reads it reports why
        if not stat.S_ISREG(info.st_mode):
            return b""
        files.append((info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    if not files:
        return b""
    name = blake3(msgspec.json.encode([context.device.info.platform, files, parts], order="sorted")).digest()
    expect(context, name)
    return name
