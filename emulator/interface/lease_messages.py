"""Leases: devices that a process takes for itself, and for the sessions that it admits by a token."""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.message import Message

WHOLE_DEVICE = 1000
"""The share of an exclusive lease."""


class LeaseTake(Message, frozen=True, kw_only=True, tag="lease_take"):
    """Take `count` devices of `platform` (empty: of any). Answer: `Leased`.

    `share`: thousandths of each device; leases of less than `WHOLE_DEVICE` may share one.
    """

    count: int = 1
    platform: str = ""
    share: int = WHOLE_DEVICE


class Leased(Message, frozen=True, kw_only=True, tag="leased"):
    """The lease lasts as long as its connection. `devices`: their numbers in the daemon.

    A `Hello` with `token` opens a session that sees exactly these devices, in this order, from 0 on.
    """

    token: str
    devices: tuple[int, ...]


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lease: its process, its devices, and its number of sessions. Never its token."""

    lease: int
    pid: int
    client: str
    devices: tuple[int, ...]
    share: int
    sessions: int
