"""The devices of this worker: leased from its node's daemon, as many as Ray has assigned.

A worker has one lease, which ends with the process. Everything that runs in it afterwards uses the leased
devices: `softnpu.plugin`, `softnpu.driver`, unmodified OpenVINO and ONNX Runtime, and child programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path

from softnpu.driver import Lease, ZeError, ZeResult
from softnpu.driver.native_library import find
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import ENV_AUTOSTART
from softnpu.farm.errors import FarmError, abandon_worker
from softnpu.farm.resources import Assigned

WITHIN_S = 60.0
"""How long a worker waits for devices assigned by Ray: their last user may be exiting."""
_PAUSE_S = 0.1
_LATER = (ZeResult.ERROR_NOT_AVAILABLE, ZeResult.ERROR_UNINITIALIZED, ZeResult.ERROR_DEVICE_LOST)

_lock = threading.Lock()
_lease: Lease | None = None


def lease() -> Lease:
    """Return this worker's lease; taken on the first call, and again if the daemon has died meanwhile.

    A worker that gets none within a minute exits, and Ray retries its work elsewhere.
    Raises `FarmError` outside Ray's workers, and in one without devices.
    """
    global _lease
    with _lock:
        if _lease is None or _lease.lost:
            release()
            _lease = _take(_assigned())
            _activate(_lease)
        return _lease


def release() -> None:
    """End the lease of this worker: its sessions lose their devices."""
    global _lease
    if _lease is not None:
        _lease.destroy()
        _lease = None


def is_lost() -> bool:
    """Return whether this worker had a lease, and its daemon is gone."""
    return _lease is not None and _lease.lost


def _assigned() -> Assigned:
    import ray

    if ray.is_initialized():
        context = ray.get_runtime_context()
        in_worker = context.worker.mode == ray.WORKER_MODE
        assigned = Assigned.of(context.get_assigned_resources()) if in_worker else None
        if assigned is not None:
            return assigned
    raise FarmError(
        "devices",
        found="none are assigned to this process",
        expected="a task or an actor with devices",
        hint='declare it with farm.remote, or give Ray resources={farm.resource("4000"): 1}',
    )


def _take(assigned: Assigned) -> Lease:
    socket = endpoint.default_socket()
    end = time.monotonic() + WITHIN_S
    while True:
        try:
            return Lease.take(socket, count=assigned.count, platform=assigned.platform, share=assigned.share)
        except ZeError as failure:
            if failure.result not in _LATER:
                raise FarmError(
                    f"the node's daemon at {socket}",
                    found=str(failure.info),
                    expected=f"{assigned.count} devices of platform {assigned.platform}, as Ray has assigned",
                    hint="start the node with softnpu farm node",
                ) from failure
            if time.monotonic() > end:
                abandon_worker(failure)
        time.sleep(_PAUSE_S)


def _activate(taken: Lease) -> None:
    """Make this process and its children use the leased devices."""
    os.environ.update(taken.environment())
    os.environ[ENV_AUTOSTART] = "0"
    with contextlib.suppress(ZeError):  # built without the native driver: softnpu.plugin still works
        library = find()
        os.environ.update(library.environment(Path(taken.socket), os.environ))
        # LD_LIBRARY_PATH has been read already: whatever needs the loader gets the one already loaded
        ctypes.CDLL(str(library.loader), mode=ctypes.RTLD_GLOBAL)
