"""Compiled models of a cluster: each is compiled once for a platform, and read from a file on every node.

An actor with a name knows who compiles what, and holds the results in Ray's object store. It may die: the
next one finds them in the files of its node, or has them compiled again.
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
"""Files in `folder`: compiled models, and what is being written."""
_MOST_FILES = 64
_FETCH_S = 600.0
_ATTEMPTS = 5


class BlobStore:
    """The compiled models of a cluster by key; an actor."""

    def __init__(self) -> None:
        self._blobs: dict[str, asyncio.Task[Any]] = {}
        self._compiled = 0

    async def get(self, key: str, model: Model, platform: str) -> list[Any]:
        """A reference to a compiled model, in a list; compiles it if nobody has."""
        if key not in self._blobs:
            self._blobs[key] = asyncio.ensure_future(self._make(key, model, platform))
        making = self._blobs[key]
        try:
            return [await asyncio.shield(making)]
        except Exception:
            if self._blobs.get(key) is making:
                del self._blobs[key]  # who comes later may try again
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
        """How many models this actor has had compiled."""
        return self._compiled


def compiled(files: Files, model: Model, platform: str) -> np.ndarray[Any, Any]:
    """The bytes of a compiled model. It needs no device of the farm, which may all be waiting for it.

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
    """The file of a compiled model on this node; gets or has it compiled first, if it is not there.

    Raises what the compiler raises, and `FarmError` when the cluster gives none for long.
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
    """What the compiler raised, in a task of an actor."""
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
    """Where this node keeps compiled models: in the user's cache, or beside the socket."""
    chosen = user_cache("farm")
    return Path(chosen) if chosen else Path(f"{endpoint.default_socket()}.blobs")


def find(key: str) -> Path | None:
    """The file of a compiled model, if this node has it."""
    path = folder() / f"{key}.blob"
    try:
        os.utime(path)  # the files that nobody uses go first
    except FileNotFoundError:
        return None
    return path


def save(key: str, blob: np.ndarray[Any, Any]) -> Path:
    """Keep a compiled model, complete or not at all, whoever else does so at this moment."""
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


def forget(path: Path) -> None:
    """Remove a file that cannot be used."""
    path.unlink(missing_ok=True)


def _prune(place: Path) -> None:
    files = []
    for path in (*place.glob(WHOLE), *place.glob(PARTS)):
        try:
            files.append((path.stat().st_mtime, path))
        except FileNotFoundError:
            continue  # another process was first
    for _, path in sorted(files)[:-_MOST_FILES]:
        path.unlink(missing_ok=True)
