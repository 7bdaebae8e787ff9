"""Descriptors of files that hang: only their sender waits."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.hung_files import HungFile
from tests.support.models import write_scale
from tests.support.wire import NOTHING, OpenWire, Wire, WireContext, WireModel


@pytest.fixture
def other(daemon: Daemon, open_wire: OpenWire) -> Iterator[Wire]:
    """Yield another session, which must still work at the end."""
    wire = open_wire(daemon)
    yield wire
    WireContext(wire).check_works()
    assert daemon.alive


@pytest.fixture
def wire(daemon: Daemon, open_wire: OpenWire, other: Wire) -> Wire:
    assert other
    return open_wire(daemon)


@pytest.fixture
def weights(private_dir: Path) -> Iterator[HungFile]:
    """Yield the weights of `scale`, on a file system that can hang."""
    xml = write_scale(private_dir, 2.0)
    with HungFile(private_dir, xml.with_suffix(".bin").read_bytes()) as file:
        yield file


def test_a_descriptor_whose_fstat_fails_is_refused(wire: Wire) -> None:
    context = WireContext(wire)
    with subprocess.Popen(["sleep", "60"]) as process:
        # a /proc directory that ends with its process: fstat returns ENOENT
        fd = os.open(f"/proc/{process.pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
        process.kill()
    try:
        with pytest.raises(OSError, match="No such file"):
            os.fstat(fd)
        for request in (
            msg.MemImport(context=context.handle, kind="device"),
            msg.MemImportPart(context=context.handle, kind="device", offset=0, size=4096, foreign=True),
            msg.MemAlloc(context=context.handle, kind="device", size=4096),
        ):
            answer = wire.answer(wire.send(request, [fd]))
            if not isinstance(answer, msg.MemAllocated):
                assert isinstance(answer, msg.Failed)
                assert answer.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    finally:
        os.close(fd)
    context.check_works()


@pytest.mark.fuse
def test_nobody_waits_for_the_closing_of_a_file_that_hangs(
    wire: Wire, other: Wire, weights: HungFile
) -> None:
    context = WireContext(wire)
    fds = [weights.open(os.O_RDWR) for _ in range(8)]
    weights.hang()
    for request, count in (
        (msg.MemAlloc(context=context.handle, kind="device", size=4096), 8),
        (msg.MemImport(context=context.handle, kind="device"), 1),
        (msg.MemImportPart(context=context.handle, kind="device", offset=0, size=4096, foreign=True), 1),
        (msg.MemImport(context=context.handle, kind="device"), 8),
    ):
        wire.send(request, fds[:count])
        other.ask(msg.Status(), msg.StatusAnswer)
    wire.close()
    other.ask(msg.Status(), msg.StatusAnswer)


@pytest.mark.fuse
def test_who_sends_files_that_hang_again_and_again_is_refused(
    daemon: Daemon, open_wire: OpenWire, weights: HungFile
) -> None:
    wire = open_wire(daemon)
    fd = weights.open(os.O_RDWR)
    weights.hang()
    for _ in range(100):
        number = wire.send(msg.Status(), [fd] * 16)
        request, answer = wire.receive()
        if request != number:
            break
    assert isinstance(answer, msg.Failed)
    assert "does not answer" in answer.info.found
    assert wire.closed()
    with Wire(daemon.socket) as another:
        assert another.info(msg.Hello(major=1, minor=0, client="x")).result == ZeResult.ERROR_NOT_AVAILABLE


@pytest.mark.fuse
def test_processes_are_started_while_files_that_hang_wait_to_be_closed(
    start_daemon: StartDaemon, open_wire: OpenWire, weights: HungFile
) -> None:
    """A new process would close them as well, and the supervisor wait for it."""
    daemon = start_daemon(interpreter=True)
    wire, other = open_wire(daemon), open_wire(daemon)
    fd = weights.open(os.O_RDWR)
    weights.hang()
    for _ in range(20):
        wire.send(msg.Status(), [fd] * 16)
    other.ask(msg.Status(), msg.StatusAnswer)
    daemon.kill_engine()
    WireContext(other).check_works()


@pytest.mark.fuse
def test_a_compilation_whose_weights_hang_ends(wire: Wire, weights: HungFile, private_dir: Path) -> None:
    context = WireContext(wire)
    request, fds = _request(context, weights, private_dir)
    weights.hang()
    info = wire.info(request, fds)
    os.close(fds[0])
    assert info.result == ZeResult.ERROR_MODULE_BUILD_FAILURE
    assert "made no progress" in info.found


@pytest.mark.fuse
@pytest.mark.parametrize("reads_alone", [False, True])
@pytest.mark.parametrize("busy", [False, True])
def test_a_load_whose_weights_hang_ends_and_the_next_one_is_served(
    start_daemon: StartDaemon,
    open_wire: OpenWire,
    weights: HungFile,
    private_dir: Path,
    chain: WireModel,
    reads_alone: bool,
    busy: bool,
) -> None:
    daemon = start_daemon(tuning=Tuning(min_start_s=2.0))
    guilty, innocent, worker = (WireContext(open_wire(daemon)) for _ in range(3))
    request, fds = _request(guilty, weights, private_dir)
    graph = guilty.wire.ask(request, msg.GraphCreated, fds).graph
    os.close(fds[0])
    other = chain.create(innocent)
    weights.hang(reads_alone)
    hanging = guilty.wire.send(msg.GraphInitialize(graph=graph))
    behind = innocent.wire.send(msg.GraphInitialize(graph=other))
    if busy:  # concurrent work is no progress of the load
        queue, buffer = worker.queue(), worker.alloc(4096, "control")
        end = threading.Event()

        def run() -> None:
            while not end.is_set():
                assert queue.run(NOTHING, buffer) == 0

        thread = threading.Thread(target=run)
        thread.start()
    try:
        answer = guilty.wire.answer(hanging)
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_DEVICE_LOST
        assert "a file of the graph that it loads did not answer" in answer.info.found
        assert isinstance(innocent.wire.answer(behind), msg.GraphInitialized)
    finally:
        if busy:
            end.set()
            thread.join()
    assert daemon.engine().restarts == 1
    worker.check_works()


def _request(context: WireContext, weights: HungFile, folder: Path) -> tuple[msg.GraphCreate, list[int]]:
    xml = (folder / "scale.xml").read_bytes()
    source = msg.WeightSource(offset=0, length=weights.size)
    request = msg.GraphCreate(context=context.handle, name="scale", xml_length=len(xml), weights=(source,))
    return request, [linux.sealed_copy("xml", xml), weights.open()]
