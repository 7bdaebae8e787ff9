"""What looks at a model may be taken over by it: of its job alone, and what it says is compared."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import psutil
import pytest
from blake3 import blake3

from softnpu.emulator.common import linux
from softnpu.emulator.compiler import caching
from softnpu.emulator.compiler import fork_server as fork_server_module
from softnpu.emulator.compiler.fork_server import ForkServer, Program
from softnpu.emulator.compiler.runtime import JobResult
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links.compiler import Compiled
from tests.support.waiting import forked_by, wait_gone, wait_readable, wait_until

pytestmark = pytest.mark.quick

_BLOB, _PLACEMENT = b"blob", b"placement"


def _made(**changes: object) -> JobResult:
    fields = {"blob_length": len(_BLOB), "placement_length": len(_PLACEMENT)}
    fds = tuple(linux.sealed_copy("made", data) for data in (_BLOB, _PLACEMENT))
    return JobResult(Compiled(**(fields | changes)), fds)  # type: ignore[arg-type]


def test_digests_are_those_of_the_bytes() -> None:
    lies = {"blob_digest": blake3(b"another model").digest(), "placement_digest": b"another"}
    made = caching._digested(_made(**lies))
    assert isinstance(made.answer, Compiled)
    told = made.answer.blob_digest, made.answer.placement_digest
    assert told == (blake3(_BLOB).digest(), blake3(_PLACEMENT).digest())
    caching._close(made)

    made = _made(blob_length=1 << 20)
    with pytest.raises(Refused, match="compiled model"):
        caching._digested(made)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made.fds[0])


def test_an_import_leaves_the_blob_as_it_was() -> None:
    given = linux.sealed_copy("given", _BLOB)
    try:
        with pytest.raises(Refused, match="another blob"):  # of equal bytes
            caching._same_blob(_made(), given, len(_BLOB))
        same = JobResult(Compiled(blob_length=len(_BLOB)), (os.dup(given),))
        assert caching._same_blob(same, given, len(_BLOB)) is same
        with pytest.raises(Refused, match="another blob"):
            caching._same_blob(same, given, len(_BLOB) - 1)
    finally:
        os.close(given)


# ------------------------------------------------------------ the fork server


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    """Its processes answer with their pid and what is loaded, and do not end."""
    loaded: list[int] = []

    def work(channel: Channel) -> None:
        channel.send(len(loaded), str(os.getpid()).encode())
        time.sleep(1000)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork_server = ForkServer(Program(lambda _: False, lambda: loaded.append(1), work), Channel(ours))
    yield fork_server
    fork_server.close()
    ours.close()
    theirs.close()


def _said(channel: Channel) -> tuple[int, int]:
    """What a process has answered: its pid, and how much is loaded."""
    assert channel.wait_readable(30.0)
    packet = channel.receive()
    assert packet is not None
    with packet:
        return int(bytes(packet.body)), packet.request


def test_loading_that_spins_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO's TBB does so when it has no memory to throw its error with."""

    def spin() -> None:
        while True:
            pass

    monkeypatch.setattr(fork_server_module, "LOAD_S", 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        spinning = ForkServer(Program(lambda _: False, spin, lambda _: None), Channel(ours))
        with pytest.raises(ConnectionError):
            spinning.begin(loaded=True)
        assert spinning.own_status() == spinning.own_status() == -signal.SIGXCPU
        spinning.close()


def test_what_does_not_end_with_its_job_is_ended(fork_server: ForkServer) -> None:
    pids = set()
    for loaded in (False, True, True):
        pid, channel = fork_server.begin(loaded=loaded)
        assert _said(channel) == (pid, int(loaded))
        fork_server.end()
        wait_gone(pid)
        assert wait_readable(channel.fileno())
        channel.close()
        pids.add(pid)
    assert len(pids) == 3


def test_a_process_waits_for_the_next_job_and_one_that_has_died_gets_none(fork_server: ForkServer) -> None:
    def spare() -> int:
        """Wait for the process that the server has forked ahead of its job."""
        return wait_until(lambda: forked_by(fork_server.pid), what="a spare process")

    first, channel = fork_server.begin(loaded=True)
    assert _said(channel) == (first, 1)
    fork_server.end()
    wait_gone(first)
    second = spare()
    assert fork_server.begin(loaded=False)[0] == second
    fork_server.end()
    wait_gone(second)
    third = spare()
    os.kill(third, signal.SIGKILL)
    wait_until(lambda: psutil.Process(third).status() == psutil.STATUS_ZOMBIE, what="its death")
    fourth, channel = fork_server.begin(loaded=True)
    assert _said(channel) == (fourth, 1)
    assert len({first, second, third, fourth}) == 4


def test_a_job_before_the_end_of_the_last_one_is_alone_as_well(fork_server: ForkServer) -> None:
    first, channel = fork_server.begin(loaded=False)
    second, other = fork_server.begin(loaded=False)
    wait_gone(first)
    assert _said(other) == (second, 0)
    assert fork_server.status() == -9
    channel.close()
    other.close()
