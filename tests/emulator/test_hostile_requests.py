"""Requests that no driver would send: each is answered, nothing else happens, and the daemon lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.frames import MAX_BODY
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_until
from tests.support.wire import HELLO, Wire, WireContext


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


_LONG = "\0" * 60_000  # its repr is four times as long, more than a frame holds


@pytest.fixture
def model(private_dir: Path) -> Iterator[tuple[int, int]]:
    """A model without weights: the descriptor of its XML, and the length."""
    xml = write_chain(private_dir, 16, 4).read_bytes()
    fd = linux.sealed_copy("xml", xml)
    yield fd, len(xml)
    os.close(fd)


def _graph(context: WireContext, length: int) -> msg.GraphCreate:
    return msg.GraphCreate(context=context.handle, name="chain", xml_length=length)


@pytest.mark.parametrize(
    "request_",
    [
        msg.QueueCreate(context=0, slots=4, priority=_LONG),
        msg.MemAlloc(context=0, kind=_LONG, size=1),
        msg.Status(must=(_LONG,)),
    ],
    ids=["priority", "kind", "must"],
)
def test_a_refusal_that_quotes_a_long_text_fits_its_frame(daemon: Daemon, request_: msg.Message) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        fields = {name: getattr(request_, name) for name in request_.__struct_fields__}
        if "context" in fields:
            fields["context"] = context.handle
        info = wire.info(type(request_)(**fields))
        assert len(info.found) < 2000
        wire.ask(msg.Status(), msg.StatusIs)


def test_a_long_unknown_tag_is_refused(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        tag = b"x" * (MAX_BODY - 6)
        answer = wire.answer(wire.send_body(b"\x81\xa1t\xda" + len(tag).to_bytes(2, "big") + tag))
        assert isinstance(answer, msg.Failed)
        wire.ask(msg.Status(), msg.StatusIs)


def test_a_long_role_in_the_handshake_is_refused(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        assert wire.info(msg.Hello(major=1, minor=0, client="x", role=_LONG)).result
        assert wire.closed()
    assert daemon.engine().state == "ready"


def test_long_client_names_do_not_spoil_the_status(daemon: Daemon) -> None:
    wires = [Wire(daemon.socket) for _ in range(3)]
    for wire in wires:
        wire.ask(msg.Hello(major=1, minor=0, client="é" * 30_000), msg.Welcome)

    assert daemon.status().session_count == 3
    for wire in wires:
        wire.close()


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (msg.ContextCreate(device=1), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.ContextCreate(device=-1), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.ContextCreate(device=2**64 - 1), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.ContextDestroy(context=0), ZeResult.ERROR_INVALID_NULL_HANDLE),
        (msg.ContextDestroy(context=2**64 - 1), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.ContextMemory(context=-1), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.MemFree(memory=(2**63,)), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.QueueDestroy(queue=0x0300000100000000), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.GraphInitialize(graph=0x0400000100000000), ZeResult.ERROR_INVALID_ARGUMENT),
        (msg.GraphDestroy(graph=0), ZeResult.ERROR_INVALID_NULL_HANDLE),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_handles_that_name_nothing_are_refused(
    daemon: Daemon, request_: msg.Message, result: ZeResult
) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        assert wire.info(request_).result == result


@pytest.mark.parametrize("slots", [-1, 0, 1, 3, 100, 8192, 2**63, 2**64 - 1])
def test_queues_of_impossible_size_are_refused(daemon: Daemon, slots: int) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        info = wire.info(msg.QueueCreate(context=context.handle, slots=slots))
    assert info.result == ZeResult.ERROR_INVALID_SIZE
    assert str(slots) in info.found


def test_a_context_destroyed_while_a_queue_of_it_is_on_its_way_out(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        for _ in range(20):
            context = WireContext(wire)
            queue = context.queue()
            wire.send(msg.QueueDestroy(queue=queue.handle))
            wire.answer(wire.send(msg.ContextDestroy(context=context.handle)))
    wait_until(lambda: daemon.memory_used() == 0)


def test_a_client_that_leaves_while_its_queue_is_on_its_way_out(daemon: Daemon) -> None:
    for _ in range(20):
        with Wire(daemon.socket) as wire:
            wire.hello()
            queue = WireContext(wire).queue()
            wire.send(msg.QueueDestroy(queue=queue.handle))
    wait_until(lambda: daemon.memory_used() == 0)


def test_a_ring_freed_while_its_queue_is_on_its_way_out(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        queue = context.queue()
        destroyed = wire.send(msg.QueueDestroy(queue=queue.handle))
        wire.send(msg.MemFree(memory=(queue.ring.handle,)))
        wire.answer(destroyed)
        assert wire.ask(msg.ContextMemory(context=context.handle), msg.ContextMemoryIs).allocated == 0


def test_the_ring_of_a_live_queue_cannot_be_freed(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        queue = WireContext(wire).queue()
        info = wire.info(msg.MemFree(memory=(queue.ring.handle,)))
    assert info.result == ZeResult.ERROR_HANDLE_OBJECT_IN_USE


def test_handles_of_another_session_name_nothing(daemon: Daemon) -> None:
    with Wire(daemon.socket) as mine, Wire(daemon.socket) as other:
        mine.hello()
        other.hello()
        memory = WireContext(mine).alloc(64)
        context = WireContext(other)
        info = other.info(msg.MemFree(memory=(memory.handle,)))
        assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
        queue = context.queue()
        buffer = context.alloc(4096, "control")
        assert buffer.handle != memory.handle
        assert queue.wait(queue.submit(memory.handle + 5, 64)) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_graph_destroyed_while_it_is_loaded_answers_both(daemon: Daemon, model: tuple[int, int]) -> None:
    fd, length = model
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        graph = wire.ask(_graph(context, length), msg.GraphCreated, [fd]).graph
        loading = wire.send(msg.GraphInitialize(graph=graph))
        destroying = wire.send(msg.GraphDestroy(graph=graph))
        answers = dict([wire.receive(), wire.receive()])
    assert set(answers) == {loading, destroying}
    assert isinstance(answers[destroying], msg.Ok)
    assert daemon.engine().images == 0


def test_a_context_destroyed_while_its_graph_is_loaded_answers_both(
    daemon: Daemon, model: tuple[int, int]
) -> None:
    fd, length = model
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        graph = wire.ask(_graph(context, length), msg.GraphCreated, [fd]).graph
        loading = wire.send(msg.GraphInitialize(graph=graph))
        destroying = wire.send(msg.ContextDestroy(context=context.handle))
        answers = dict([wire.receive(), wire.receive()])
    assert set(answers) == {loading, destroying}


@pytest.mark.parametrize("count", [0, 2, 3, 16])
def test_a_graph_with_a_wrong_number_of_descriptors_is_refused(
    daemon: Daemon, model: tuple[int, int], count: int
) -> None:
    fd, length = model
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        before = daemon.fd_count
        info = wire.info(_graph(context, length), [fd] * count)
        assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
        assert f"{count} descriptors" in info.found
        wait_until(lambda: daemon.fd_count == before)


def test_a_compilation_goes_on_under_one_number_only(daemon: Daemon, model: tuple[int, int]) -> None:
    fd, length = model
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        body = msg.encode(_graph(context, length))
        for _ in range(2):
            wire.channel.send(77, body, [fd])
        answers: list[msg.Answer] = []
        while len(answers) < 2:
            number, answer = wire.receive()
            assert number == 77
            if not isinstance(answer, msg.Progress):
                answers.append(answer)
    assert {type(answer) for answer in answers} == {msg.Failed, msg.GraphCreated}


def test_a_cancel_of_nothing_is_harmless(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        for number in (0, 1, 99, 2**32, -1):
            wire.ask(msg.Cancel(request=number), msg.Ok)


def test_the_status_page_of_the_welcome_is_for_reading_only(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        page = wire.take_fd()
        with pytest.raises(PermissionError):
            linux.map_shared(page, os.fstat(page).st_size)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(page, b"x")


def test_the_name_of_a_client_cannot_forge_log_lines(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.ask(msg.Hello(major=1, minor=0, client="x\n2026 ERROR forged: line"), msg.Welcome)
    assert "\n2026 ERROR forged" not in daemon.log
    assert HELLO.client == "by hand"
