"""Announces to the device what it will load while the program still reads it.

The hint of a graph that is not compiled yet is a digest of its source files and its compilation settings. The
device records what it loads with a hint, and starts loading that when the hint comes again. It identifies an
image by content alone: a file that changed without its times merely wastes work.
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


def expect_model(
    context: Context,
    model: Any,
    weights: Path | None,
    config: Mapping[str, str],
    shapes: Mapping[str, Any] | None,
) -> bytes:
    """Expect the graph of a model that will be compiled; return its hint, empty for a model in memory."""
    if not isinstance(model, str | os.PathLike):
        return b""
    path = Path(model)
    if weights is None and path.suffix == ".xml":
        weights = path.with_suffix(".bin")
    extents = {name: str(shape) for name, shape in (shapes or {}).items()}
    return _expect(context, [path] if weights is None else [path, weights], [dict(config), extents])


def expect_exported(context: Context, source: Any) -> bytes:
    """Expect the graph of an exported model; return its hint, empty unless the model is given as a path."""
    return _expect(context, [Path(source)], []) if isinstance(source, str | os.PathLike) else b""


def _expect(context: Context, paths: Sequence[Path], parts: Sequence[dict[str, str]]) -> bytes:
    files = []
    for path in paths:
        try:
            info = path.stat()
        except (OSError, ValueError):
            continue  # its reader reports the reason
        if not stat.S_ISREG(info.st_mode):
            return b""
        files.append((info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    if not files:
        return b""
    hint = blake3(msgspec.json.encode([context.device.info.platform, files, parts], order="sorted")).digest()
    expect(context, hint)
    return hint
