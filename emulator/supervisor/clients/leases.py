"""Leases: devices reserved by a process, and the sessions that may see them.

On a daemon started for leases a session without one sees no device, and one with a lease sees only its
devices. So programs of one user cannot take each other's devices by mistake. This is no security boundary:
the daemon's owner can command it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from softnpu.emulator.common.model_texts import listed
from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE, Leased, LeaseStatus, LeaseTake
from softnpu.emulator.interface.records import DeviceState
from softnpu.emulator.interface.result import ErrorInfo, ZeResult, refuse
from softnpu.emulator.platforms import numbers
from softnpu.emulator.supervisor.engines.device import Device

log = logging.getLogger(__name__)

_TOKEN_BYTES = 16
_CLIENT_NAME = 64  # bytes
_LISTED = 64


class _Lease(msgspec.Struct):
    """A lease, held by a connection. `sessions`: a function to end each of its sessions."""

    number: int
    pid: int
    client: str
    devices: tuple[int, ...]
    share: int
    digest: bytes
    sessions: dict[int, Callable[[ErrorInfo], None]] = msgspec.field(default_factory=dict)


class Leases:
    """The leases of a daemon. `enabled`: it was started with `--leased-only`."""

    def __init__(self, devices: Sequence[Device], enabled: bool) -> None:
        self._devices = devices
        self._enabled = enabled
        self._leases: dict[int, _Lease] = {}

    def check_role(self) -> None:
        """Refuse the role `lease` on a daemon where every session sees every device."""
        if not self._enabled:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                "handshake",
                found="role 'lease', and a daemon whose devices everybody may use",
                expected="a daemon that is started for leases",
                hint="start it with softnpu daemon --leased-only",
            )

    def take(self, number: int, pid: int, client: str, request: LeaseTake) -> Leased:
        """Lease devices to the connection `number`."""
        if number in self._leases:
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                "lease",
                found="the connection has one",
                expected="one lease a connection",
                hint="open another connection",
            )
        import secrets  # late, as `hashlib` below: they load a library, and few daemons lease

        chosen = self._choose(request)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        name = listed(client, _CLIENT_NAME)
        self._leases[number] = _Lease(number, pid, name, chosen, request.share, _digest(token))
        log.info("lease %d: devices %s, share %d, for pid %d", number, chosen, request.share, pid)
        return Leased(token=token, devices=chosen)

    def _choose(self, request: LeaseTake) -> tuple[int, ...]:
        if not 1 <= request.share <= WHOLE_DEVICE:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "lease",
                found=f"a share of {request.share}",
                expected=f"1 to {WHOLE_DEVICE} thousandths",
            )
        (platform,) = numbers([request.platform])
        suited = [
            device
            for device in self._devices
            if platform in ("", device.info.platform) and device.state is not DeviceState.FAILED
        ]
        what = "devices" if not request.platform else f"devices of platform {request.platform[:16]}"
        if not 1 <= request.count <= len(suited):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "lease",
                found=f"{request.count} {what} asked for",
                expected=f"1 to {len(suited)}, which this daemon has" if suited else "others: it has none",
            )
        taken = dict.fromkeys(range(len(self._devices)), 0)
        for lease in self._leases.values():
            for index in lease.devices:
                taken[index] += lease.share
        most = WHOLE_DEVICE - request.share
        free = [device.info.index for device in suited if taken[device.info.index] <= most]
        if len(free) < request.count:
            raise refuse(
                ZeResult.ERROR_NOT_AVAILABLE,
                "lease",
                found=f"{len(free)} {what} have room for a share of {request.share}",
                expected=f"{request.count}",
                hint="wait until another lease ends; softnpu status lists them",
            )
        # the fullest first: whole devices stay free for exclusive leases
        return tuple(sorted(sorted(free, key=lambda index: (-taken[index], index))[: request.count]))

    def devices_of(self, token: str) -> tuple[int, ...]:
        """Return the devices that a session with this token sees (empty: without one)."""
        if not token:
            if not self._enabled:
                return tuple(range(len(self._devices)))
            raise refuse(
                ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
                "session",
                found="no lease, and a daemon whose devices are for leases only",
                expected="the token of a lease in SOFTNPU_LEASE",
                hint="run the program where one is taken for it, such as in a function of farm.remote",
            )
        return self._find(token).devices

    def join(self, token: str, session: int, end: Callable[[ErrorInfo], None]) -> None:
        """Let a session with a token end with its lease."""
        if token:
            self._find(token).sessions[session] = end

    def _find(self, token: str) -> _Lease:
        import secrets

        digest = _digest(token)
        for lease in self._leases.values():
            if secrets.compare_digest(lease.digest, digest):
                return lease
        raise refuse(
            ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
            "session",
            found="a token that belongs to no lease of this daemon",
            expected="the token of a lease that lasts",
            hint="a lease ends with the process that took it, and with the daemon: take another one",
        )

    def client_gone(self, number: int) -> None:
        """End the lease of a connection that has ended, and its sessions; or forget an ended session."""
        for lease in self._leases.values():
            lease.sessions.pop(number, None)
        ended = self._leases.pop(number, None)
        if ended is None:
            return
        log.info("lease %d: ended, with %d sessions", number, len(ended.sessions))
        info = ErrorInfo(
            result=ZeResult.ERROR_DEVICE_LOST,
            object="lease",
            found=f"process {ended.pid}, which took it, has ended it",
            expected="a lease that lasts",
            hint="take another one",
        )
        for end in list(ended.sessions.values()):
            end(info)

    def status(self) -> tuple[LeaseStatus, ...]:
        """Return all leases, the oldest first, at most 64."""
        return tuple(
            LeaseStatus(
                lease=each.number,
                pid=each.pid,
                client=each.client,
                devices=each.devices,
                share=each.share,
                sessions=len(each.sessions),
            )
            for each in list(self._leases.values())[:_LISTED]
        )


def _digest(token: str) -> bytes:
    """Return the stored digest of a token: a dump of the daemon's memory does not reveal the token."""
    import hashlib

    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
