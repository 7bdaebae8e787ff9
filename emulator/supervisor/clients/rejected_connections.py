"""Rejected connections, which receive the reason as the answer to their first request.

A driver sends its hello as soon as it is connected. An earlier answer followed by a close would leave it with
a broken pipe instead of the reason.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.supervisor.reactor import Reactor, Timer

log = logging.getLogger(__name__)

_MOST = 64
_LONGEST_S = 2.0


class _Waiting(NamedTuple):
    channel: Channel
    info: ErrorInfo
    timer: Timer


class RejectedConnections:
    """Up to 64 connections, each kept until its first request, for 2 s, or until newer ones need its slot."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._waiting: dict[int, _Waiting] = {}

    def refuse(self, channel: Channel, info: ErrorInfo) -> None:
        """Refuse a new connection with the reason `info`; takes the channel."""
        log.warning("refused a connection: %s", info)
        if len(self._waiting) >= _MOST:
            self._end(next(iter(self._waiting)))
        fd = channel.fileno()
        reactor = self._reactor.owned(
            "which ends a refused connection", lambda _info: self._end(fd), share=RejectedConnections
        )
        timer = reactor.after(_LONGEST_S, partial(self._end, fd))
        try:
            self._waiting[fd] = _Waiting(channel, info, timer)
            reactor.watch(fd, partial(self._read, fd))
        except BaseException:
            self._end(fd)
            raise

    def close(self) -> None:
        """End them all."""
        for fd in list(self._waiting):
            self._end(fd)

    def _read(self, fd: int) -> None:
        request = 0
        try:
            packet = self._waiting[fd].channel.receive()
            if packet is not None:
                packet.close()
                request = packet.request
        except (Refused, OSError) as error:
            log.debug("the refused client has sent nothing: %s", error)
        self._end(fd, request)

    def _end(self, fd: int, request: int = 0) -> None:
        if fd not in self._waiting:
            return
        channel, info, timer = self._waiting[fd]
        steps = ExitStack()
        steps.callback(channel.discard)
        steps.callback(self._reactor.unwatch, fd)
        steps.callback(self._waiting.pop, fd)
        steps.callback(timer.cancel)
        with steps, suppress(OSError):  # of a client that is gone
            channel.send(request, msg.encode(msg.Failed(info=info)))
