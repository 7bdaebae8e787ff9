"""Finding the daemon: connect to its socket, and start a per-user one when there is none.

A daemon may exit at any moment, on its own when it has no clients. It may miss a client that arrives then:
that client connects to the next daemon or starts it: interface.md, "Coming and going".
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from softnpu.driver import starter
from softnpu.driver.errors import ZeError, error, uninitialized
from softnpu.emulator.common import failpoints, file_claim, file_ownership, linux
from softnpu.emulator.interface import daemon_files, endpoint
from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_LEASE, ENV_SOCKET
from softnpu.emulator.interface.result import Refused, ZeResult

_CALL = "zeInitDrivers"
_WITHIN_S = 60.0
_CONNECT_S = 5.0
_PAUSE_S = 0.01
_LOOK_S = 0.05
_MOST_STARTS = 3
_OTHERS_S = 10.0
"""To start a daemon takes others a few seconds, at most: one who takes longer was stopped."""


class DaemonLauncher:
    """Connects one client to the daemon, within 60 s from now.

    `path` None is the default socket; with `autostart` None the environment decides.
    """

    def __init__(self, path: Path | None, autostart: bool | None) -> None:
        try:
            self.socket_path = endpoint.default_socket() if path is None else path.absolute()
        except Refused as refused:
            raise ZeError(_CALL, refused.info) from refused
        self._named = path is not None or bool(os.environ.get(ENV_SOCKET))
        self._may_start = os.environ.get(ENV_AUTOSTART, "1") != "0" if autostart is None else autostart
        self._is_leased = bool(os.environ.get(ENV_LEASE))
        self._end = time.monotonic() + _WITHIN_S
        self._peer = 0
        self._same_peer = False
        self.is_own = False
        """Whether the daemon is this user's."""
        self._connections = 0
        self._starts = 0

    def connect(self) -> socket.socket:
        """Return a connected socket; nothing has been sent.

        Raises `ZeError`: UNINITIALIZED when there is no daemon and none may be started,
        INSUFFICIENT_PERMISSIONS if it belongs to an untrusted user.
        """
        if self._connections:
            time.sleep(_PAUSE_S)  # the daemon that closed the last one may be about to exit
        self._connections += 1
        outcome = self._try()
        if isinstance(outcome, socket.socket):
            starter.leave_early()
            return outcome
        if self._is_leased or not self._may_start:
            way_out = f"start one with 'softnpu daemon', or let clients do so (unset {ENV_AUTOSTART})"
            raise uninitialized(
                _CALL,
                f"daemon at {self.socket_path}",
                found=outcome,
                expected="a running daemon",
                hint=f"take another lease: that in {ENV_LEASE} ended with it" if self._is_leased else way_out,
            )
        return self._start()

    def may_try_again(self) -> bool:
        """Return whether a daemon that closed the connection without an answer may have exited by itself.

        False for one reached a second time: an exiting daemon accepts no more connections. False also if
        several that were started have ended so.
        """
        may_start = self._starts < _MOST_STARTS
        return may_start and not self._same_peer and time.monotonic() < self._end

    def _try(self) -> socket.socket | str:
        """Return a connection, or the reason why there is none."""
        if failpoints.active is not None:
            failpoints.hit("client.connect")
        sock = endpoint.new_socket()
        try:
            sock.settimeout(_CONNECT_S)
            with endpoint.socket_address(self.socket_path) as address:
                sock.connect(address)
            self._check_peer(sock)
            sock.settimeout(None)
        except FileNotFoundError:
            reason = "no socket there"
        except ConnectionRefusedError:
            reason = "a socket that nobody serves"
        except TimeoutError:
            reason = f"it did not accept within {_CONNECT_S:g} s"
        except OSError as failure:
            sock.close()
            raise uninitialized(
                _CALL,
                f"daemon at {self.socket_path}",
                found=failure.strerror or str(failure),
                expected="the socket of a softnpu daemon",
                hint=_way_out(failure),
            ) from failure
        except Refused as refused:
            sock.close()
            raise uninitialized(
                _CALL, refused.info.object, found=refused.info.found, expected=refused.info.expected
            ) from refused
        except BaseException:
            sock.close()
            raise
        else:
            return sock
        sock.close()
        return reason

    def _check_peer(self, sock: socket.socket) -> None:
        """Reject a daemon of neither this user nor root, unless its socket was named and is its own."""
        peer = linux.peer_of(sock)
        self._same_peer = bool(peer.pid) and peer.pid == self._peer
        self._peer = peer.pid
        self.is_own = peer.uid == os.geteuid()
        if peer.uid in (os.geteuid(), file_ownership.ROOT):
            return
        expected = f"a daemon of user {os.geteuid()} or root"
        hint = f"choose another place with {ENV_SOCKET}"
        if not self._named:
            raise self._refuse(found=f"it belongs to user {peer.uid}", expected=expected, hint=hint)
        owner = self.socket_path.lstat().st_uid
        if owner != peer.uid:
            reason = f"user {peer.uid} serves a socket of user {owner}"
            raise self._refuse(found=reason, expected=f"{expected}, or of the owner of the socket", hint=hint)
        try:
            daemon_files.check_folder_of(self.socket_path.parent, peer.uid)
        except Refused as refused:
            info = refused.info
            reason = f"it belongs to user {peer.uid}, and {info.object}: {info.found}"
            raise self._refuse(
                found=reason, expected=f"{expected}, or {info.expected}", hint=info.hint
            ) from refused

    def _refuse(self, *, found: str, expected: str, hint: str) -> ZeError:
        return error(
            _CALL,
            ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
            f"daemon at {self.socket_path}",
            found=found,
            expected=expected,
            hint=hint,
        )

    def _start(self) -> socket.socket:
        # of concurrent clients one starts the daemon, the others then connect to it
        try:
            gate = os.open(self.socket_path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as failure:
            raise uninitialized(
                _CALL,
                f"daemon at {self.socket_path}",
                found=f"{self.socket_path.parent}: {failure.strerror}",
                expected="a directory in which a daemon can make its socket",
                hint=f"choose another place with {ENV_SOCKET}",
            ) from failure
        try:
            outcome = self._wait_for_others(gate)
            while not isinstance(outcome, socket.socket):
                self._run_starter()
                outcome = self._try()
                if isinstance(outcome, str) and time.monotonic() >= self._end:
                    raise self._failed(f"it was started but: {outcome}")
        finally:
            os.close(gate)
        return outcome

    def _wait_for_others(self, gate: int) -> socket.socket | str:
        """Wait until nobody else starts a daemon, or one accepts: who starts it may have been stopped.

        After a while go on beside others: of several daemons the first one to lock the socket serves.
        """
        end = time.monotonic() + _OTHERS_S
        while not file_claim.lock_before(gate, min(end, time.monotonic() + _LOOK_S)):
            outcome = self._try()
            if isinstance(outcome, socket.socket) or time.monotonic() >= end:
                return outcome
        return self._try()

    def _run_starter(self) -> None:
        path = str(self.socket_path)
        chosen = starter.take(path)
        try:
            code, output, errors = chosen.start(path, _WITHIN_S)
        except TimeoutError:
            raise self._failed(f"it did not come up within {_WITHIN_S:g} s") from None
        if code < 0 and chosen.is_early:
            return  # somebody has killed it before it began: the next one is new
        if code != 0 or output:  # the code is unknown if this program ignores the end of children
            raise self._failed(_reason(output, errors))
        self._starts += 1

    def _failed(self, found: str) -> ZeError:
        log = endpoint.log_path(self.socket_path)
        return uninitialized(
            _CALL,
            f"daemon at {self.socket_path}",
            found=found,
            expected="a daemon that comes up",
            hint=f"read {log}, or start it by hand: softnpu daemon --foreground",
        )


def _way_out(failure: OSError) -> str:
    other = f"choose its place with {ENV_SOCKET}"
    if isinstance(failure, PermissionError):
        return f"ask its owner to start it with --allow-user {os.geteuid()}, or {other}"
    return other


def _reason(stdout: bytes, stderr: bytes) -> str:
    try:
        return str(json.loads(stdout)["reason"])
    except (ValueError, KeyError, TypeError):
        lines = stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"
