"""Malformed frames: random bytes, truncated and stretched frames, wrong lengths, half-open connections."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections.abc import Callable

import msgspec

from softnpu.emulator.interface import frames
from softnpu.emulator.interface import messages as msg
from tests.fuzz.attack_frames import Target
from tests.fuzz.connection import Closed, Connection, Hang, close_all, drained
from tests.fuzz.dice import Dice
from tests.fuzz.report import Tally, Violation
from tests.support.wire import unread_stream

_SAMPLES: tuple[msg.Message, ...] = (
    msg.ContextCreate(device=0),
    msg.MemAlloc(context=0x0100000100000000, kind="host", size=64),
    msg.MemFree(memory=(0x0200000100000000,)),
    msg.QueueCreate(context=0x0100000100000000, slots=4),
    msg.GraphImport(context=0x0100000100000000, blob_length=4096),
    msg.CompilerOptions(device=0),
    msg.Status(),
    msg.Cancel(request=3),
)
_BODIES = [msg.encode(sample) for sample in _SAMPLES]
_MANY_FDS = 253
_DEEP = 20_000


def raw_round(target: Target, dice: Dice, count: int, tally: Tally) -> None:
    """Send `count` frames; every connection ends with a refusal, or answers all later frames."""
    connection: Connection | None = None
    try:
        for number in range(count):
            if connection is None:
                connection = Connection(target.socket)
                if dice.chance(0.9):
                    connection.hello()
            if dice.chance(0.02):
                _abandon(target, dice)
                tally.accepted["raw half-open"] += 1
                continue
            if not _send_one(connection, dice, target, tally, number):
                connection.close()
                connection = None
    finally:
        if connection is not None:
            connection.close()


def _send_one(connection: Connection, dice: Dice, target: Target, tally: Tally, number: int) -> bool:
    """Send one malformed frame and a marker; return whether the connection survives."""
    packet, fds = _packet(dice, target)
    marker = frames.encode(0xFFFFFFFF, msg.encode(msg.Cancel(request=number)))
    try:
        connection.socket.sendmsg([packet], [_rights(fds)] if fds else [])
        connection.socket.send(marker)
    except TimeoutError as error:
        raise Hang("the daemon does not read") from error
    except OSError:
        _last_words(connection, tally)  # closed meanwhile, or the socket is full
        return False
    try:
        while True:
            request, answer, received = connection.receive()
            close_all(received)
            if request == 0xFFFFFFFF:
                return True
            if not isinstance(answer, msg.Progress):
                tally.saw("raw", answer)
                tally.deep["raw"] += 1
    except Closed:
        tally.refused["raw closed"] += 1
        return False


def _last_words(connection: Connection, tally: Tally) -> None:
    with contextlib.suppress(Hang):
        answer = drained(connection)
        if answer is not None:
            tally.saw("raw", answer)
    tally.refused["raw closed"] += 1


def _rights(fds: list[int]) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds)


def _packet(dice: Dice, target: Target) -> tuple[bytes, list[int]]:
    """Return a malformed packet, and the descriptors that go with it."""
    body = dice.pick(_BODIES)
    fd = dice.pick(list(target.hostile_objects.by_kind.values()))
    packet, counts = dice.pick(_WAYS)
    return packet(dice, frames.encode(dice.randint(1, 1000), body), body), [fd] * dice.pick(counts)


_WAYS: tuple[tuple[Callable[[Dice, bytes, bytes], bytes], tuple[int, ...]], ...] = (
    (lambda dice, _good, _body: dice.randbytes(dice.pick((1, 15, 16, 17, 64, 4096))), (0,)),
    (lambda dice, good, _body: good[: dice.randrange(1, len(good))], (0,)),
    (lambda dice, good, body: good[:12] + struct.pack("<I", dice.unsigned(32)) + body, (0,)),
    (lambda dice, good, _body: good[:6] + struct.pack("<H", dice.unsigned(16)) + good[8:], (0, 1, 2, 3)),
    (lambda _dice, good, _body: good, (1, 2, 16, 17, 40, _MANY_FDS)),
    (lambda dice, good, _body: dice.damaged(good), (0,)),
    (lambda dice, _good, body: frames.encode(1, dice.damaged(body)), (0,)),
    (lambda dice, _good, _body: frames.encode(1, dice.randbytes(dice.pick((0, 1, 20, 65536)))), (0,)),
    (lambda dice, _good, _body: frames.encode(1, _nested(dice)), (0,)),
    (lambda dice, good, _body: good + bytes(dice.pick((1, 16, frames.MAX_BODY, 70_000))), (0,)),
    (lambda dice, _good, _body: frames.encode(1, _claims(dice)), (0,)),
    (lambda dice, _good, body: frames.encode(dice.pick((0, 0xFFFFFFFE)), body), (0,)),
    (lambda dice, _good, body: frames.encode(1, dice.damaged(body, 1)), (1,)),
)
"""Ways to spoil a good packet or its body, each with the numbers of descriptors to send."""


def _nested(dice: Dice) -> bytes:
    """Nest arrays or maps deeper than any stack."""
    depth = dice.pick((10, 1000, _DEEP))
    key = b"\x82\xa1t\xa8mem_free\xa6memory"
    return key + dice.pick((b"\x91", b"\x81\xa1a")) * depth + b"\x00"


def _claims(dice: Dice) -> bytes:
    """Claim sizes without content: of an array, a map, a text, bytes."""
    size = dice.pick((2**32 - 1, 2**31, 2**24, 65537)).to_bytes(4, "big")
    name = dice.pick(
        (b"\xa8mem_free\xa6memory", b"\xaecontext_memory\xa4must", b"\xacgraph_create\xa6config")
    )
    return b"\x82\xa1t" + name + dice.pick((b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")) + size


def _abandon(target: Target, dice: Dice) -> None:
    """Leave a connection in the middle of a message."""
    connection = Connection(target.socket)
    way = dice.randrange(6)
    try:
        if way >= 1:
            connection.send(msg.encode(msg.Hello(major=1, minor=0, client="half-open")))
        if way >= 2:
            for _ in range(20):
                connection.send(msg.encode(msg.ContextCreate(device=0)))
        if way == 3:
            connection.socket.shutdown(socket.SHUT_WR)
            drained(connection)
        if way == 4:
            connection.socket.shutdown(socket.SHUT_RD)
        if way == 5:
            model = target.models[0]
            body = msg.encode(model.import_request(0x0100000100000000))
            for _ in range(3):
                connection.send(body, model.import_fds)
    except Closed:
        pass
    finally:
        connection.close()


def lingering(target: Target, tally: Tally) -> None:
    """Send descriptors that take a minute to close: the supervisor must not be the last to close them."""
    with Connection(target.socket) as connection:
        connection.hello()
        for _ in range(3):
            fd, receiver = unread_stream()
            receiver.detach()  # open until this process ends
            connection.send(msg.encode(msg.Status()), [fd])
            os.close(fd)
            connection.socket.settimeout(10)
            _, answer, _ = connection.receive()
            tally.saw("raw lingering", answer)


def slow_reader(target: Target, tally: Tally) -> None:
    """Ask and never read: it is disconnected, and everybody else is served meanwhile."""
    connection = Connection(target.socket)
    connection.hello()
    connection.socket.settimeout(1)
    body = msgspec.msgpack.encode({"t": "status"})
    sent = 0
    with contextlib.suppress(Closed, Hang):
        while sent < 20_000:
            connection.send(body)
            sent += 1
    connection.close()
    if sent >= 20_000:
        raise Violation(f"a client that reads nothing had {sent} requests served")
    tally.refused["raw slow reader"] += 1
