"""What one session and one user may hold: each limit refuses by name, without effect, and is given back."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.daemon import LineLimit
from softnpu.emulator.engine.context import _SESSION_BYTES, EngineContext
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.program import Program
from softnpu.emulator.engine.scheduler import Share
from softnpu.emulator.engine.staging import Staging
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.messages import UserStatus
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.supervisor.limits import Quota, ResourceLimits, option_name
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conftest import StartDaemon, StartPython
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_until
from tests.support.wire import HELLO, Wire, WireContext
from tests.support.work import check_works

MIB = 1 << 20
_ONE_WORKER: dict[str, float] = {"softnpu.emulator.supervisor.compilers:_WORKERS": 1}


@pytest.fixture
def model(private_dir: Path) -> Iterator[Model]:
    """A model without weights."""
    xml = write_chain(private_dir, 16, 4).read_bytes()
    fd = linux.sealed_copy("xml", xml)
    yield Model(fd, len(xml))
    os.close(fd)


class Model(NamedTuple):
    """The descriptor of a model's XML, and its length."""

    fd: int
    length: int

    def order(self, context: WireContext, name: str = "chain") -> msg.GraphCreate:
        return msg.GraphCreate(context=context.handle, name=name, xml_length=self.length)


def _mine(daemon: Daemon) -> UserStatus:
    (user,) = daemon.status().users
    return user


def _check(info: ErrorInfo, result: ZeResult, limit: int, name: str) -> None:
    """The refusal says what, how much of it, the limit, and the option that raises it."""
    assert info.result == result, info
    assert info.object
    assert f"{limit}" in info.expected, info
    assert f"--limit {name}" in info.hint, info


class _Kind(NamedTuple):
    """A kind of thing with a limit: how to ask for one more, and to give one back."""

    field: str
    limit: int
    result: ZeResult
    ask: Callable[[WireContext], msg.Message]
    answer: type[msg.Message]
    give: Callable[[Any], msg.Message]


_HOST, _DEVICE = ZeResult.ERROR_OUT_OF_HOST_MEMORY, ZeResult.ERROR_OUT_OF_DEVICE_MEMORY


def _alloc(size: int, exportable: bool = False) -> Callable[[WireContext], msg.Message]:
    return lambda c: msg.MemAlloc(context=c.handle, kind="host", size=size, exportable=exportable)


def _free(answer: msg.MemAllocated) -> msg.Message:
    return msg.MemFree(memory=(answer.memory,))


def _queue(context: WireContext) -> msg.Message:
    return msg.QueueCreate(context=context.handle, slots=2)


def _drop_queue(answer: msg.QueueCreated) -> msg.Message:
    return msg.QueueDestroy(queue=answer.queue)


def _context(_: WireContext) -> msg.Message:
    return msg.ContextCreate(device=0)


def _drop_context(answer: msg.ContextCreated) -> msg.Message:
    return msg.ContextDestroy(context=answer.context)


_OF_A_USER = [
    _Kind("user_memory", 4 * MIB, _DEVICE, _alloc(MIB), msg.MemAllocated, _free),
    _Kind("user_handles", 9, _HOST, _alloc(64), msg.MemAllocated, _free),
    _Kind("user_handles", 5, _HOST, _context, msg.ContextCreated, _drop_context),
    _Kind("user_queues", 3, _HOST, _queue, msg.QueueCreated, _drop_queue),
    _Kind("user_segments", 6, _HOST, _alloc(64, exportable=True), msg.MemAllocated, _free),
]
_OF_A_SESSION = [
    _Kind("session_contexts", 3, _HOST, _context, msg.ContextCreated, _drop_context),
    _Kind("session_allocations", 4, _HOST, _alloc(64), msg.MemAllocated, _free),
    _Kind("session_queues", 3, _HOST, _queue, msg.QueueCreated, _drop_queue),
    _Kind("session_segments", 4, _HOST, _alloc(64, exportable=True), msg.MemAllocated, _free),
]


def _fill(wire: Wire, context: WireContext, kind: _Kind) -> tuple[list[Any], ErrorInfo]:
    """Asks until it is refused."""
    got: list[Any] = []
    while True:
        answer = wire.answer(wire.send(kind.ask(context)))
        if isinstance(answer, msg.Failed):
            return got, answer.info
        assert isinstance(answer, kind.answer)
        got.append(answer)
        assert len(got) <= kind.limit, "no limit"


def _held(daemon: Daemon, session: int) -> msg.SessionStatus:
    return next(entry for entry in daemon.status().sessions if entry.session == session)


@pytest.mark.parametrize("kind", _OF_A_SESSION, ids=lambda kind: kind.field)
def test_a_session_is_refused_what_is_beyond_its_limit(start_daemon: StartDaemon, kind: _Kind) -> None:
    daemon = start_daemon(limits=ResourceLimits(**{kind.field: kind.limit}))
    with Wire(daemon.socket) as wire, Wire(daemon.socket) as other:
        session = wire.hello().session
        other.hello()
        context = WireContext(wire)
        got, info = _fill(wire, context, kind)
        _check(info, kind.result, kind.limit, option_name(kind.field))

        before = _held(daemon, session)
        wire.info(kind.ask(context))
        assert _held(daemon, session) == before, "a refusal has no effect"
        wire.ask(kind.give(got.pop()), msg.Ok)
        wire.ask(kind.ask(context), kind.answer)
        assert isinstance(other.answer(other.send(kind.ask(WireContext(other)))), kind.answer)


@pytest.mark.parametrize("kind", _OF_A_USER, ids=lambda kind: f"{kind.field}-{kind.answer.__name__}")
def test_many_sessions_of_a_user_are_refused_together(start_daemon: StartDaemon, kind: _Kind) -> None:
    daemon = start_daemon(limits=ResourceLimits(**{kind.field: kind.limit}))
    with Wire(daemon.socket) as one, Wire(daemon.socket) as two:
        one.hello()
        two.hello()
        first, second = WireContext(one), WireContext(two)
        kept = two.ask(kind.ask(second), kind.answer)
        got, info = _fill(one, first, kind)
        _check(info, kind.result, kind.limit, option_name(kind.field))
        assert "user 0" in info.found or f"user {os.getuid()}" in info.found

        before = _mine(daemon)
        _check(two.info(kind.ask(second)), kind.result, kind.limit, option_name(kind.field))
        after = _mine(daemon)
        assert after.refusals == before.refusals + 1
        assert (after.memory_used, after.handles) == (before.memory_used, before.handles)

        two.ask(kind.give(kept), msg.Ok)
        one.ask(kind.ask(first), kind.answer)
        two.info(kind.ask(second))
        for answer in got:
            one.ask(kind.give(answer), msg.Ok)
        two.ask(kind.ask(second), kind.answer)


def test_graphs_of_a_user_have_a_limit(start_daemon: StartDaemon, model: Model) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_graphs=2, session_graphs=3))
    with Wire(daemon.socket) as one, Wire(daemon.socket) as two:
        one.hello()
        two.hello()
        first, second = WireContext(one), WireContext(two)
        graph = one.ask(model.order(first), msg.GraphCreated, [model.fd]).graph
        two.ask(model.order(second), msg.GraphCreated, [model.fd])
        _check(two.info(model.order(second), [model.fd]), _HOST, 2, "user-graphs")

        one.ask(msg.GraphDestroy(graph=graph), msg.Ok)
        two.ask(model.order(second), msg.GraphCreated, [model.fd])
        assert _mine(daemon).graphs == 2


def test_compilations_of_a_session_and_of_a_user_have_a_limit(
    start_daemon: StartDaemon, model: Model
) -> None:
    daemon = start_daemon(limits=ResourceLimits(session_compiles=3, user_compiles=4))
    with Wire(daemon.socket) as one, Wire(daemon.socket) as two:
        one.hello()
        two.hello()
        first, second = WireContext(one), WireContext(two)
        started = [one.send(model.order(first, f"a{number}"), [model.fd]) for number in range(3)]
        _check(one.info(model.order(first, "x"), [model.fd]), _HOST, 3, "session-compiles")
        started_two = two.send(model.order(second, "b"), [model.fd])
        _check(two.info(model.order(second, "y"), [model.fd]), _HOST, 4, "user-compiles")
        for number in (started[1], started[2]):
            one.ask(msg.Cancel(request=number), msg.Ok)
        two.send(model.order(second, "c"), [model.fd])
        assert isinstance(two.answer(started_two), msg.GraphCreated)
    wait_until(lambda: daemon.status().users[0].compiles == 0, what="abandoned jobs are given back")


def test_connections_of_a_user_have_a_limit(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_connections=4))
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(daemon.socket)) for _ in range(4)]
        for wire in wires:
            wire.hello()
        with Wire(daemon.socket) as late:
            number, answer = late.receive()
            assert number == 0
            assert isinstance(answer, msg.Failed)
            _check(answer.info, ZeResult.ERROR_NOT_AVAILABLE, 4, "user-connections")
            assert late.closed()
        wires[0].close()
        wait_until(lambda: wires[1].ask(msg.Status(), msg.StatusIs).users[0].connections == 3)
        stack.enter_context(Wire(daemon.socket)).hello()
        assert isinstance(wires[1].answer(wires[1].send(_alloc(64)(WireContext(wires[1])))), msg.MemAllocated)


def test_sessions_of_a_user_have_a_limit_and_monitors_still_see(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_sessions=2))
    with Wire(daemon.socket) as one, Wire(daemon.socket) as two:
        one.hello()
        two.hello()
        with Wire(daemon.socket) as late:
            _check(late.info(HELLO), ZeResult.ERROR_NOT_AVAILABLE, 2, "user-sessions")
            assert late.closed()
        assert daemon.status().session_count == 2
        one.close()
        wait_until(lambda: daemon.status().session_count == 1)
        with Wire(daemon.socket) as late:
            late.hello()


def test_connections_that_say_nothing_have_a_limit(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_handshakes=8))
    with Wire(daemon.socket) as innocent, ExitStack() as stack:
        innocent.hello()
        wires = [stack.enter_context(Wire(daemon.socket)) for _ in range(8)]
        with Wire(daemon.socket) as late:
            _, answer = late.receive()
            assert isinstance(answer, msg.Failed)
            _check(answer.info, ZeResult.ERROR_NOT_AVAILABLE, 8, "user-handshakes")
        wires[0].hello()
        WireContext(innocent).alloc(64)
        stack.enter_context(Wire(daemon.socket)).hello()
        for wire in wires[1:]:
            assert wire.closed(), "no hello within 5 s"
    assert _mine(daemon).connections == 1


def test_connections_of_all_users_have_a_limit(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(max_clients=2)
    with Wire(daemon.socket) as one, Wire(daemon.socket) as two:
        one.hello()
        two.hello()
        with Wire(daemon.socket) as late:
            _, answer = late.receive()
            assert isinstance(answer, msg.Failed)
            assert answer.info.result == ZeResult.ERROR_NOT_AVAILABLE
            assert "--max-clients" in answer.info.hint


def test_what_a_killed_client_had_is_its_users_again(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path
) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_memory=16 * MIB))
    client = start_python(
        """
        driver = Driver.open(Path(given["socket"]))
        context = driver.devices[0].create_context()
        kept = [context.alloc_host(1 << 20) for _ in range(10)]
        queues = [context.create_command_queue() for _ in range(5)]
        with GraphSource.from_ir(Path(given["xml"])) as source:
            graph = context.create_graph(source)
        say("full")
        hear()
        """,
        socket=str(daemon.socket),
        xml=str(digits),
    )
    assert client.hear() == "full"
    with Wire(daemon.socket) as monitor:
        monitor.hello("monitor")
        (held,) = monitor.ask(msg.Status(), msg.StatusIs).users
        assert held.memory_used > 10 * MIB
        assert (held.sessions, held.connections, held.queues, held.graphs) == (1, 2, 5, 1)
        assert held.handles >= 1 + 10 + 5 + 1

        client.process.kill()

        def all_back() -> bool:
            (user,) = monitor.ask(msg.Status(), msg.StatusIs).users
            return (user.memory_used, user.handles, user.queues, user.graphs, user.sessions) == (0,) * 5

        wait_until(all_back, what="everything of the dead client given back")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        context.alloc_host(15 * MIB)


def test_everything_of_a_context_is_given_back_with_it(start_daemon: StartDaemon, digits: Path) -> None:
    daemon = start_daemon()
    with Driver.open(daemon.socket) as driver:
        for _ in range(3):
            context = driver.devices[0].create_context()
            check_works(context)
            context.alloc_host(3 * MIB)
            context.create_command_queue()
            context.destroy()
        wait_until(lambda: _mine(daemon).memory_used == 0)
        user = _mine(daemon)
        assert (user.handles, user.queues, user.graphs, user.compiles) == (0, 0, 0, 0)
        assert (user.sessions, user.connections, user.refusals) == (1, 2, 0)
    assert digits.exists()


def test_an_engine_reset_changes_nothing_of_what_a_user_holds(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        kept = context.alloc_host(3 * MIB)
        before = _mine(daemon)
        daemon.kill_engine()
        daemon.wait_restarted(1)
        after = _mine(daemon)
        assert (after.memory_used, after.handles) == (before.memory_used, before.handles)
        kept.destroy()
        assert _mine(daemon).memory_used == before.memory_used - 3 * MIB


def test_a_flood_of_compilations_lets_another_session_through(
    start_daemon: StartDaemon, model: Model
) -> None:
    daemon = start_daemon(patches=_ONE_WORKER)
    with Wire(daemon.socket) as greedy, Wire(daemon.socket) as other:
        greedy.hello()
        other.hello()
        mine, its = WireContext(greedy), WireContext(other)
        for number in range(40):
            greedy.send(model.order(mine, f"model {number}"), [model.fd])
        other.ask(model.order(its), msg.GraphCreated, [model.fd])
        waiting = daemon.status().users[0].compiles
        assert waiting >= 20, "it did not wait for all of the others"
    wait_until(lambda: daemon.status().users[0].compiles == 0)


def test_the_defaults_are_far_from_what_honest_programs_need() -> None:
    limits = ResourceLimits()
    assert limits.user_sessions >= 1064 + 64
    assert limits.user_connections > limits.user_sessions, "monitors come in when sessions do not"
    for name in ("contexts", "allocations", "queues", "graphs", "compiles"):
        session = getattr(limits, f"session_{name}")
        user = getattr(limits, f"user_{name}", limits.user_handles)
        assert user >= 4 * session, name


@pytest.mark.parametrize("name", ResourceLimits.__struct_fields__)
def test_a_limit_that_cannot_work_is_refused_by_name(name: str) -> None:
    with pytest.raises(Refused) as caught:
        DaemonSettings(socket="x", limits=ResourceLimits(**{name: -1})).check()
    assert option_name(name) in caught.value.info.object


def test_a_quota_refuses_exactly_what_is_beyond_it() -> None:
    quota = Quota(10, "user-things", "things", "user 7", "thing")
    quota.check(10)
    quota.take(9)
    quota.check()
    with pytest.raises(Refused) as caught:
        quota.check(2)
    assert quota.refusals == 1
    assert "2 things asked for, user 7 has 9" in caught.value.info.found
    quota.give(1)
    quota.check(2)


def test_the_limits_on_the_command_line(private_dir: Path) -> None:
    help_text = softnpu("daemon", "--help", COLUMNS="400").words
    for name in ResourceLimits.__struct_fields__:
        assert option_name(name) in help_text
    place = ("daemon", "--socket", str(private_dir / "npu.sock"))
    assert "user-cakes" in softnpu(*place, "--limit", "user-cakes=3").complaint
    assert "'many'" in softnpu(*place, "--limit", "user-queues=many").complaint
    assert "user-queues" in softnpu(*place, "--limit", "user-queues=0").complaint


def test_the_log_takes_a_bounded_number_of_lines() -> None:
    def record(second: float, level: int = logging.INFO) -> logging.LogRecord:
        made = logging.LogRecord("x", level, "", 0, "client %d", (7,), None)
        made.created = 1000.0 + second
        return made

    limit = LineLimit(lines=5, period_s=10.0)
    assert [limit.filter(record(number / 10)) for number in range(8)] == [True] * 5 + [False] * 3
    assert limit.filter(record(1, logging.WARNING)), "each level has its own"
    assert all(limit.filter(record(1, logging.ERROR)) for _ in range(50)), "errors are all written"
    later = record(11)
    assert limit.filter(later)
    assert later.getMessage() == "(3 lines were left out before this one) client 7"


# ---------------------------------------------------------------- decoded programs in the engine


def _program(length: int, inferences: int = 0) -> Program:
    return Program(
        data=bytes(length), uses=frozenset({1}), steps=(), commands=1, inferences=inferences, noted=False
    )


def _engine_context(share: Share) -> EngineContext:
    """One with the handles that programs are kept for."""
    context = EngineContext(1, os.eventfd(0), lambda: None, share, Staging(-1))
    for handle in (1, 7, 8):
        context.add_graph(handle, EngineImage(handle))
    return context


def test_what_an_engine_keeps_decoded_for_a_session_has_a_limit() -> None:
    share = Share()
    contexts = [_engine_context(share) for _ in range(8)]
    for context in contexts:
        for offset in range(200):
            context.remember(7, offset, _program(256 * 1024))
            assert share.kept_bytes <= _SESSION_BYTES
    contexts[0].remember(8, 0, _program(64, inferences=10**6))
    assert contexts[0].program(8, 0, bytes(64)) is None, "more than a session may have alone"
    contexts[1].drop_memory((7,))
    for context in contexts:
        context.close()
    assert share.kept_bytes == 0


def test_a_program_of_normal_size_is_kept() -> None:
    context = _engine_context(Share())
    program = _program(4096, inferences=64)
    context.remember(7, 0, program)
    context.remember(7, 0, program)
    assert context.program(7, 0, bytes(4096)) is program
    assert context.share.kept_bytes == 16 * 4096 + 64 * 4096
    context.close()


@pytest.mark.parametrize("gone", ["a handle that it uses", "its buffer", "its context"])
def test_a_program_is_not_kept_if_something_of_it_went_while_it_was_decoded(gone: str) -> None:
    context = _engine_context(Share())
    match gone:
        case "a handle that it uses":
            context.drop_graph(1)
        case "its buffer":
            context.drop_graph(7)
        case _:
            context.close()
    context.remember(7, 0, _program(4096))
    assert context.program(7, 0, bytes(4096)) is None
    assert context.share.kept_bytes == 0
    if gone != "its context":
        context.close()
