"""Compiled models of a cluster: each is compiled once per platform, and read from a file on every node.

A named actor tracks the compilations and holds the results in Ray's object store. If it dies, the next one
finds them in the files of its node, or has them compiled again.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import numpy as np

from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import user_cache
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.farm.errors import FarmError
from softnpu.farm.keeper import DaemonKeeper
from softnpu.farm.model import Files, Model, written

STORE, NAMESPACE = "softnpu.farm.blobs", "softnpu"
WHOLE, PARTS = "*.blob", ".*.part"
"""Files in `folder`: compiled models, and partial writes."""
_MOST_FILES = 64
_FETCH_S = 600.0
_ATTEMPTS = 5


class BlobStore:
    """The compiled models of a cluster by key; an actor."""

    def __init__(self) -> None:
        self._blobs: dict[str, asyncio.Task[Any]] = {}
        self._compiled = 0

    async def get(self, key: str, model: Model, platform: str) -> list[Any]:
        """Return a reference to a compiled model, in a list; compile it first if necessary."""
        if key not in self._blobs:
            self._blobs[key] = asyncio.ensure_future(self._make(key, model, platform))
        making = self._blobs[key]
        try:
            return [await asyncio.shield(making)]
        except Exception:
            if self._blobs.get(key) is making:
                del self._blobs[key]  # later callers may retry
            raise

    async def _make(self, key: str, model: Model, platform: str) -> Any:
        import ray

        if (path := find(key)) is not None:
            return ray.put(np.fromfile(path, np.uint8))
        self._compiled += 1
        compile_ = ray.remote(num_cpus=0, max_retries=_ATTEMPTS, max_calls=1)(compiled)
        reference = compile_.remote(model.reference, model, platform)
        waited: Awaitable[Any] = reference
        save(key, await waited)
        return reference

    async def compilations(self) -> int:
        """Return the number of models compiled through this actor."""
        return self._compiled


def compiled(files: Files, model: Model, platform: str) -> np.ndarray[Any, Any]:
    """Compile a model; return its bytes. Uses no device of the farm, which may all be waiting for it.

    Raises `CompileError` and `ModelError` of the plugin.
    """
    from softnpu.plugin import Core

    config = {"NPU_DEFER_WEIGHTS_LOAD": "YES", **model.config}
    with tempfile.TemporaryDirectory(prefix="softnpu-farm-") as name:
        folder = Path(name)
        path = written(files, model.main, folder)
        os.environ.pop("SOFTNPU_LEASE", None)
        socket = folder / "npu.sock"
        daemon = DaemonKeeper(DaemonSettings(socket=str(socket), devices=(platform,)))
        try:
            daemon.wait_ready()
            loaded = Core(socket).compile_model(path, "NPU", config, shapes=model.shapes or None)
            loaded.export_model(folder / "out.blob")
        finally:
            daemon.close()
        return np.fromfile(folder / "out.blob", np.uint8)


def fetched(model: Model, platform: str) -> Path:
    """Return the file of a compiled model on this node; fetch or compile it first if it is missing.

    Raises the compiler's errors, and `FarmError` when the cluster does not provide it in time.
    """
    import ray

    if model.is_compiled:
        return find(model.digest) or save(
            model.digest, np.frombuffer(ray.get(model.reference)[model.main], np.uint8)
        )
    key = model.key(platform)
    end = time.monotonic() + _FETCH_S
    while True:
        if (path := find(key)) is not None:
            return path
        try:
            (reference,) = ray.get(_store().get.remote(key, model, platform), timeout=_FETCH_S)
            return save(key, ray.get(reference, timeout=_FETCH_S))
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as failure:
            # the store, or the node with the blob, has died; the next store finds it or has it compiled
            if time.monotonic() > end:
                raise FarmError(
                    f"model {model.name}",
                    found=str(failure).splitlines()[0],
                    expected=f"a compiled model within {_FETCH_S:g} s",
                ) from failure
        except ray.exceptions.RayTaskError as failure:
            raise _cause(failure) from None


def _cause(failure: Any) -> Exception:
    """Return the exception of the compiler, raised in an actor's task."""
    import ray

    cause: Exception = failure
    while isinstance(cause, ray.exceptions.RayTaskError) and isinstance(cause.cause, Exception):
        cause = cause.cause
    return cause


def _store() -> Any:
    import ray

    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 1000}
    return (
        ray.remote(BlobStore)
        .options(name=STORE, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, **options)
        .remote()
    )


# ------------------------------------------------------------ files of this node


def folder() -> Path:
    """Return this node's folder of compiled models: in the user's cache, or beside the socket."""
    chosen = user_cache("farm")
    return Path(chosen) if chosen else Path(f"{endpoint.default_socket()}.blobs")


def find(key: str) -> Path | None:
    """Return the file of a compiled model, if this node has it."""
    path = folder() / f"{key}.blob"
    try:
        os.utime(path)  # unused files are removed first
    except FileNotFoundError:
        return None
    return path


def save(key: str, blob: np.ndarray[Any, Any]) -> Path:
    """Save a compiled model atomically, also against concurrent writers."""
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=place, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(blob.data)
        path = place / f"{key}.blob"
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    _prune(place)
    return path


def _prune(place: Path) -> None:
    files = []
    for path in (*place.glob(WHOLE), *place.glob(PARTS)):
        try:
            files.append((path.stat().st_mtime, path))
        except FileNotFoundError:
            continue  # another process was first
    for _, path in sorted(files)[:-_MOST_FILES]:
        path.unlink(missing_ok=True)
