"""Finding the daemon: connect to its socket, and start a per-user one when there is none."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from softnpu.driver.errors import error
from softnpu.emulator.interface import failpoints, places
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.emulator.interface.version import ENV_AUTOSTART, ENV_SOCKET

_CALL = "zeInitDrivers"
_DAEMON_MODULE = "softnpu.emulator.autostart"
_START_S = 60.0
_CONNECT_S = 5.0


def connect(path: Path | None, autostart: bool | None) -> socket.socket:
    """A connected socket. `path` None is the default place, `autostart` None asks the environment.

    Raises `ZeError` with ERROR_UNINITIALIZED when there is no daemon and none may be started.
    """
    try:
        place = places.default_socket() if path is None else path.absolute()
    except Refused as refused:
        raise error(
            _CALL,
            ZeResult(refused.fault.result),
            refused.fault.object,
            refused.fault.found,
            refused.fault.expected,
            refused.fault.hint,
        ) from refused
    found = _try(place)
    if isinstance(found, socket.socket):
        return found
    allowed = os.environ.get(ENV_AUTOSTART, "1") != "0" if autostart is None else autostart
    if not allowed:
        raise error(
            _CALL,
            ZeResult.ERROR_UNINITIALIZED,
            f"daemon at {place}",
            found,
            "a running daemon",
            f"start one with 'softnpu daemon', or let clients do so (unset {ENV_AUTOSTART})",
        )
    return _start(place)


def _try(path: Path) -> socket.socket | str:
    """A connection, or why there is none."""
    if failpoints.active is not None:
        failpoints.hit("client.connect")
    sock = places.new_socket()
    try:
        sock.settimeout(_CONNECT_S)
        with places.socket_address(path) as address:
            sock.connect(address)
    except FileNotFoundError:
        reason = "no socket there"
    except ConnectionRefusedError:
        reason = "a socket that nobody serves"
    except TimeoutError:
        reason = f"it did not accept within {_CONNECT_S:g} s"
    except OSError as failure:
        sock.close()
        raise error(
            _CALL,
            ZeResult.ERROR_UNINITIALIZED,
            f"daemon at {path}",
            failure.strerror or str(failure),
            "the socket of a softnpu daemon",
            f"choose its place with {ENV_SOCKET}",
        ) from failure
    except Refused as refused:
        sock.close()
        raise error(
            _CALL,
            ZeResult.ERROR_UNINITIALIZED,
            refused.fault.object,
            refused.fault.found,
            refused.fault.expected,
        ) from refused
    else:
        sock.settimeout(None)
        return sock
    sock.close()
    return reason


def _start(path: Path) -> socket.socket:
    # one of many clients that come at once starts the daemon, the others find it afterwards
    try:
        gate = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as failure:
        raise error(
            _CALL,
            ZeResult.ERROR_UNINITIALIZED,
            f"daemon at {path}",
            f"{path.parent}: {failure.strerror}",
            "a directory in which a daemon can make its socket",
            f"choose another place with {ENV_SOCKET}",
        ) from failure
    try:
        _lock(gate, path)
        found = _try(path)
        if isinstance(found, socket.socket):
            return found
        _run_starter(path)
        found = _try(path)
    finally:
        os.close(gate)
    if isinstance(found, socket.socket):
        return found
    raise error(
        _CALL,
        ZeResult.ERROR_UNINITIALIZED,
        f"daemon at {path}",
        f"it was started but: {found}",
        "a running daemon",
        f"read {places.log_path(path)}",
    )


def _lock(gate: int, path: Path) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise error(
                    _CALL,
                    ZeResult.ERROR_UNINITIALIZED,
                    f"daemon at {path}",
                    f"another process has been starting it for {_START_S:g} s",
                    "a daemon that comes up",
                    f"read {places.log_path(path)}",
                ) from None
        time.sleep(0.01)  # flock has no time-out; this polls for another process's start of a daemon


def _run_starter(path: Path) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _DAEMON_MODULE, str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"it did not come up within {_START_S:g} s"
    else:
        if done.returncode == 0:
            return
        reason = _reason(done.stdout, done.stderr)
    raise error(
        _CALL,
        ZeResult.ERROR_UNINITIALIZED,
        f"daemon at {path}",
        reason,
        "a daemon that comes up",
        f"read {places.log_path(path)}, or start it by hand: softnpu daemon --foreground",
    )


def _reason(stdout: bytes, stderr: bytes) -> str:
    try:
        return str(json.loads(stdout)["reason"])
    except (ValueError, KeyError, TypeError):
        lines = stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"
