"""The weights of a model exported without them: at their origin, in WEIGHTS_PATH, or in the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import openvino as ov
from msgspec.structs import replace

from softnpu.driver import GraphSource, WeightFile
from softnpu.emulator.blob.container import ConstantReference
from softnpu.emulator.blob.weights import Placement, SpaceLayout
from softnpu.emulator.common import model_texts
from softnpu.emulator.interface.messages import WeightSource
from softnpu.plugin.errors import BlobError
from softnpu.plugin.exported.metadata import WeightsOrigin
from softnpu.plugin.loaded_model import OriginSource
from softnpu.plugin.models.weights_pool import (
    Entry,
    Pool,
    files_for,
    pool_of_file,
    pool_of_model,
    pool_of_source,
)

_NEXT_STEP = "Give the weights that it was compiled with: WEIGHTS_PATH, or the model as `model`"


@dataclass(frozen=True)
class Located:
    """Weights for the driver, and the offsets of the constants in them."""

    files: Sequence[WeightFile]
    placement: Placement


def locate(
    constants: Sequence[ConstantReference],
    origin: WeightsOrigin | None,
    path: str,
    model: ov.Model | None,
    name: str,
    stack: ExitStack,
) -> Located:
    """Locate the constants outside of a blob; descriptors live as long as `stack`.

    `path` is WEIGHTS_PATH, empty for none. Content is read only for a constant with an unknown name.
    Raises `BlobError` with the first missing constant, `ModelError` for an unreadable file.
    """
    pools = [stack.enter_context(pool_of_file(Path(path)))] if path else []
    if model is not None:
        pools.append(stack.enter_context(pool_of_model(model, f"model '{model_texts.friendly_name(model)}'")))
    recorded = origin is not None and len(origin.offsets) == len(constants) and bool(origin.offsets)
    in_files = origin is not None and all(source.path for source in origin.sources)
    if origin is not None and origin.model and not pools and not (recorded and in_files):
        pools.append(stack.enter_context(pool_of_file(Path(origin.model))))
        recorded = False
    if origin is not None and recorded and (not pools or (path and pools[0].raw)):
        sources = _open_sources(origin.sources, pools[0] if pools else None, name, stack)
        return _at_offsets(constants, sources, origin.offsets, name)
    if not pools:
        raise BlobError(
            f"{name}: exported without its weights, {sum(c.length for c in constants)} bytes in"
            f" {len(constants)} constants, and the model was in no file. {_NEXT_STEP}"
        )
    return _by_name_or_digest(constants, pools, name)


def locate_in(
    source: GraphSource,
    constants: Sequence[ConstantReference],
    origin: WeightsOrigin | None,
    name: str,
    stack: ExitStack,
) -> Located:
    """Locate the constants in the weights of a model that is being compiled.

    It is the model of the exported file, so recorded offsets are valid.
    Raises `BlobError`.
    """
    if origin is not None and origin.offsets and len(origin.offsets) == len(constants):
        return Located(source.weights, Placement(offsets=origin.offsets))
    return _by_name_or_digest(constants, [stack.enter_context(pool_of_source(source))], name)


# ---------------------------------------------------------------- at recorded offsets


@dataclass(frozen=True)
class _Source:
    """An opened source: the recorded range of a file, and its name for messages."""

    name: str
    fd: int
    offset: int
    length: int


def _open_sources(
    sources: Sequence[OriginSource], replacement: Pool | None, name: str, stack: ExitStack
) -> list[_Source]:
    """Open the recorded sources; the file of `replacement` replaces the largest one."""
    largest = max(range(len(sources)), key=lambda index: sources[index].length)
    opened = []
    for index, source in enumerate(sources):
        if replacement is not None and index == largest:
            opened.append(_Source(replacement.name, replacement.fds[0], source.offset, source.length))
            continue
        try:
            if not source.path:
                raise FileNotFoundError(0, "they were in memory, not in a file")
            fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as failure:
            where = f"in {source.path}: " if source.path else ""
            raise BlobError(f"{name}: its weights were {where}{failure.strerror}. {_NEXT_STEP}") from failure
        stack.callback(os.close, fd)
        opened.append(_Source(f"weights {source.path}", fd, source.offset, source.length))
    return opened


def _at_offsets(
    constants: Sequence[ConstantReference], sources: list[_Source], offsets: Sequence[int], name: str
) -> Located:
    layout = SpaceLayout([WeightSource(offset=each.offset, length=each.length) for each in sources])
    sizes = [os.fstat(source.fd).st_size for source in sources]
    for constant, offset in zip(constants, offsets, strict=True):
        index = max((n for n, start in enumerate(layout.starts) if start <= offset), default=0)
        source, at = sources[index], offset - layout.starts[index] + sources[index].offset
        if at + constant.length > sizes[index]:
            raise BlobError(
                f"{name}: {source.name}: constant '{constant.name}': {sizes[index]} bytes; expected"
                f" {constant.length} at {at}. {_NEXT_STEP}"
            )
    files = [WeightFile(each.fd, each.offset, each.length) for each in sources]
    if len(files) == 1:  # it may have been truncated after the last constant
        files[0] = replace(files[0], length=min(files[0].length, sizes[0] - files[0].offset))
    return Located(files, Placement(offsets=tuple(offsets)))


# ---------------------------------------------------------------- by name or digest


def _by_name_or_digest(constants: Sequence[ConstantReference], pools: Sequence[Pool], name: str) -> Located:
    pool = _joined(pools)
    entries: list[Entry] = []
    for constant in constants:
        entry = pool.named(constant.name, constant.length) or pool.with_digest(
            constant.digest, constant.length
        )
        if entry is None:
            raise BlobError(
                f"{name}: constant '{constant.name}' of {constant.length} bytes, blake3"
                f" {constant.digest.hex()}: not in {pool.name}. {_NEXT_STEP}"
            )
        entries.append(entry)
    files, offsets = files_for(pool, entries)
    return Located(files, Placement(offsets=tuple(offsets)))


def _joined(pools: Sequence[Pool]) -> Pool:
    """Merge pools into one; they keep their descriptors."""
    if len(pools) == 1:
        return pools[0]
    joined = Pool(" or ".join(pool.name for pool in pools))
    for pool in pools:
        first = len(joined.fds)
        joined.fds += pool.fds
        joined.add(Entry(each.name, each.file + first, each.offset, each.length) for each in pool.entries)
    return joined
