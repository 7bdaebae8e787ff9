"""Limits of sessions and users: each is refused by name, without effect, and freed again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.daemon import LineLimit
from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.commands.program_cache import SESSION_BYTES
from softnpu.emulator.engine.images import EngineImage
from softnpu.emulator.engine.memory.staging import Staging
from softnpu.emulator.engine.queues.context import EngineContext
from softnpu.emulator.engine.share import Share
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.messages import UserStatus
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.supervisor.limits import Account, Quota, ResourceLimits, option_name
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon, StartPython
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_until
from tests.support.wire import HELLO, OpenWire, Wire, WireContext, WireModel

MIB = 1 << 20


def _mine(daemon: Daemon) -> UserStatus:
    (user,) = daemon.status().users
    return user


def _check(info: ErrorInfo, result: ZeResult, limit: int, name: str) -> None:
    """Assert that the refusal gives the object, its amount, the limit, and the option that raises it."""
    assert info.result == result, info
    assert info.object
    assert f"{limit}" in info.expected, info
    assert f"--limit {name}" in info.hint, info


class _Kind(NamedTuple):
    """A limited kind of object: how to allocate and free one."""

    field: str
    limit: int
    result: ZeResult
    ask: Callable[[WireContext], msg.Message]
    answer: type[msg.Message]
    give: Callable[[Any], msg.Message]


_HOST, _DEVICE = ZeResult.ERROR_OUT_OF_HOST_MEMORY, ZeResult.ERROR_OUT_OF_DEVICE_MEMORY


def _memory(
    field: str, limit: int, size: int = 64, exportable: bool = False, result: ZeResult = _HOST
) -> _Kind:
    def ask(context: WireContext) -> msg.Message:
        return msg.MemAlloc(context=context.handle, kind="host", size=size, exportable=exportable)

    return _Kind(field, limit, result, ask, msg.MemAllocated, lambda a: msg.MemFree(memory=(a.memory,)))


def _queues(field: str) -> _Kind:
    def ask(context: WireContext) -> msg.Message:
        return msg.QueueCreate(context=context.handle, slots=2)

    return _Kind(field, 3, _HOST, ask, msg.QueueCreated, lambda a: msg.QueueDestroy(queue=a.queue))


def _contexts(field: str) -> _Kind:
    def ask(_: WireContext) -> msg.Message:
        return msg.ContextCreate(device=0)

    return _Kind(field, 3, _HOST, ask, msg.ContextCreated, lambda a: msg.ContextDestroy(context=a.context))


_OF_A_USER = [
    _memory("user_memory", 4 * MIB, size=MIB, result=_DEVICE),
    _memory("user_handles", 9),
    _queues("user_queues"),
    _memory("user_segments", 6, exportable=True),
]
_OF_A_SESSION = [
    _contexts("session_contexts"),
    _memory("session_allocations", 6),
    _queues("session_queues"),
    _memory("session_segments", 4, exportable=True),
]


def _fill(wire: Wire, context: WireContext, kind: _Kind) -> tuple[list[Any], ErrorInfo]:
    """Allocate until refused."""
    got: list[Any] = []
    while True:
        answer = wire.answer(wire.send(kind.ask(context)))
        if isinstance(answer, msg.Failed):
            return got, answer.info
        assert isinstance(answer, kind.answer)
        got.append(answer)
        assert len(got) <= kind.limit, "no limit"


def test_a_session_is_refused_what_is_beyond_its_limits(
    start_daemon: StartDaemon, open_wire: OpenWire
) -> None:
    daemon = start_daemon(limits=ResourceLimits(**{kind.field: kind.limit for kind in _OF_A_SESSION}))
    for kind in _OF_A_SESSION:
        wire, other = open_wire(daemon), open_wire(daemon)
        context = WireContext(wire)
        got, info = _fill(wire, context, kind)
        _check(info, kind.result, kind.limit, option_name(kind.field))

        before = daemon.status().sessions
        wire.info(kind.ask(context))
        assert daemon.status().sessions == before, "a refusal has no effect"
        wire.ask(kind.give(got.pop()), msg.Ok)
        wire.ask(kind.ask(context), kind.answer)
        other.ask(kind.ask(WireContext(other)), kind.answer)


@pytest.mark.parametrize("kind", _OF_A_USER, ids=lambda kind: f"{kind.field}-{kind.answer.__name__}")
def test_many_sessions_of_a_user_are_refused_together(
    start_daemon: StartDaemon, open_wire: OpenWire, kind: _Kind
) -> None:
    daemon = start_daemon(limits=ResourceLimits(**{kind.field: kind.limit}))
    one, two = open_wire(daemon), open_wire(daemon)
    first, second, name = WireContext(one), WireContext(two), option_name(kind.field)
    kept = two.ask(kind.ask(second), kind.answer)
    got, info = _fill(one, first, kind)
    _check(info, kind.result, kind.limit, name)
    assert f"user {os.getuid()}" in info.found

    before = _mine(daemon)
    _check(two.info(kind.ask(second)), kind.result, kind.limit, name)
    after = _mine(daemon)
    assert after.refusals == before.refusals + 1
    assert (after.memory_used, after.handles) == (before.memory_used, before.handles)

    two.ask(kind.give(kept), msg.Ok)
    one.ask(kind.ask(first), kind.answer)
    two.info(kind.ask(second))
    for answer in got:
        one.ask(kind.give(answer), msg.Ok)
    two.ask(kind.ask(second), kind.answer)


def test_a_context_counts_for_the_descriptors_of_its_user(
    start_daemon: StartDaemon, open_wire: OpenWire
) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_segments=5))
    one, two = open_wire(daemon), open_wire(daemon)
    request = msg.ContextCreate(device=0)
    contexts = [wire.ask(request, msg.ContextCreated).context for wire in (one, two, one, two, one)]
    _check(two.info(request), _HOST, 5, "user-segments")
    one.ask(msg.ContextDestroy(context=contexts[0]), msg.Ok)

    def has_room() -> bool:
        return isinstance(two.answer(two.send(request)), msg.ContextCreated)

    wait_until(has_room, what="the engine has dropped the context")
    two.info(request)


def test_the_files_of_graphs_count_for_the_descriptors_of_their_user(
    start_daemon: StartDaemon, open_wire: OpenWire, private_dir: Path
) -> None:
    daemon = start_daemon(limits=ResourceLimits(session_segments=2))
    wire = open_wire(daemon)
    context = WireContext(wire)
    with (
        WireModel(write_chain(private_dir, 16, 2, "one")) as one,
        WireModel(write_chain(private_dir, 16, 3, "two")) as two,
    ):
        graphs = [one.create(context), one.create(context)]
        info = wire.info(two.request(context, "two"), two.fds)
        assert (info.result, info.object) == (ZeResult.ERROR_OUT_OF_HOST_MEMORY, "graph")
        assert "session-segments" in info.hint
        for graph in graphs:
            wire.ask(msg.GraphDestroy(graph=graph), msg.Ok)
        two.create(context, "two")


def test_graphs_and_compilations_have_limits(
    start_daemon: StartDaemon, open_wire: OpenWire, chain: WireModel
) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_graphs=2, session_compiles=3, user_compiles=4))
    one, two = open_wire(daemon), open_wire(daemon)
    first, second = WireContext(one), WireContext(two)
    graph, other = chain.create(first), chain.create(second)
    _check(two.info(chain.request(second), chain.fds), _HOST, 2, "user-graphs")
    one.ask(msg.GraphDestroy(graph=graph), msg.Ok)
    assert chain.create(second)
    assert _mine(daemon).graphs == 2
    two.ask(msg.GraphDestroy(graph=other), msg.Ok)

    mine, theirs = (
        msg.GraphQuery(context=c.handle, name="q", xml_length=chain.length) for c in (first, second)
    )
    started = [one.send(mine, chain.fds) for _ in range(3)]
    _check(one.info(mine, chain.fds), _HOST, 3, "session-compiles")
    started_two = two.send(theirs, chain.fds)
    _check(two.info(theirs, chain.fds), _HOST, 4, "user-compiles")
    for number in started[1:]:
        one.ask(msg.Cancel(request=number), msg.Ok)
    two.send(theirs, chain.fds)
    assert isinstance(two.answer(started_two), msg.GraphQueried)
    one.close()
    two.close()
    wait_until(lambda: daemon.status().users[0].compiles == 0, what="abandoned jobs are given back")


@pytest.mark.parametrize(
    ("settings", "option", "greeted"),
    [
        ({"limits": ResourceLimits(user_connections=3)}, "--limit user-connections", True),
        ({"limits": ResourceLimits(user_handshakes=2)}, "--limit user-handshakes", False),
        ({"max_clients": 3}, "--max-clients", True),
    ],
    ids=["connections", "handshakes", "all users"],
)
def test_connections_have_limits(
    start_daemon: StartDaemon, settings: dict[str, Any], option: str, greeted: bool
) -> None:
    daemon = start_daemon(tuning=Tuning(handshake_s=1.0), **settings)
    with Wire(daemon.socket) as innocent, ExitStack() as stack:
        innocent.hello()
        wires = [stack.enter_context(Wire(daemon.socket)) for _ in range(2)]
        for wire in wires if greeted else []:
            wire.hello()
        with Wire(daemon.socket) as late:
            number, answer = late.receive()
            assert number == 0
            assert isinstance(answer, msg.Failed)
            assert answer.info.result == ZeResult.ERROR_NOT_AVAILABLE
            assert option in answer.info.hint
            assert late.closed()
        WireContext(innocent).alloc(64)
        if greeted:
            wires[0].close()
            wait_until(lambda: innocent.ask(msg.Status(), msg.StatusAnswer).users[0].connections == 2)
            stack.enter_context(Wire(daemon.socket)).hello()
        else:
            assert all(wire.closed() for wire in wires), "no hello in time"


def test_sessions_of_a_user_have_a_limit_and_monitors_still_see(
    start_daemon: StartDaemon, open_wire: OpenWire
) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_sessions=1))
    one = open_wire(daemon)
    with Wire(daemon.socket) as late:
        _check(late.info(HELLO), ZeResult.ERROR_NOT_AVAILABLE, 1, "user-sessions")
        assert late.closed()
    assert daemon.status().session_count == 1
    one.close()
    wait_until(lambda: daemon.status().session_count == 0)
    open_wire(daemon)


def test_a_flood_of_compilations_lets_another_session_through(
    start_daemon: StartDaemon, open_wire: OpenWire, chain: WireModel
) -> None:
    daemon = start_daemon(tuning=Tuning(compilers=1))
    greedy, other = open_wire(daemon), open_wire(daemon)
    context = WireContext(greedy)
    for number in range(40):
        greedy.send(chain.request(context, f"model {number}"), chain.fds)
    chain.create(WireContext(other))
    assert daemon.status().users[0].compiles >= 20, "it did not wait for all of the others"
    greedy.close()
    wait_until(lambda: daemon.status().users[0].compiles == 0)


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
        (held,) = monitor.ask(msg.Status(), msg.StatusAnswer).users
        assert held.memory_used > 10 * MIB
        daemon.kill_engine()
        daemon.wait_restarted(1)
        (after,) = monitor.ask(msg.Status(), msg.StatusAnswer).users
        assert after == held, "an engine reset changes nothing of what a user has"
        assert (held.sessions, held.connections, held.queues, held.graphs) == (1, 2, 5, 1)
        assert held.handles >= 1 + 10 + 5 + 1

        client.process.kill()

        def all_back() -> bool:
            (user,) = monitor.ask(msg.Status(), msg.StatusAnswer).users
            return (user.memory_used, user.handles, user.queues, user.graphs, user.sessions) == (0,) * 5

        wait_until(all_back, what="everything of the dead client given back")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        context.alloc_host(15 * MIB)


def test_metric_streams_of_a_user_have_a_limit_and_end_with_their_session(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    def fill(wire: Wire) -> tuple[int, ErrorInfo]:
        """Open as many as allowed; close the first one and open one more."""
        wire.hello()
        request = msg.MetricStreamOpen(context=WireContext(wire).handle, period=10**9)
        opened = []
        while isinstance(answer := wire.answer(wire.send(request)), msg.MetricStreamOpened):
            opened.append(answer.stream)
        assert isinstance(answer, msg.Failed)
        if opened:
            wire.ask(msg.MetricStreamClose(stream=opened[0]), msg.Ok)
            wire.ask(request, msg.MetricStreamOpened)
        return len(opened), answer.info

    def fill_all() -> int:
        count, total = 1, 0
        with ExitStack() as stack:
            while count:
                count, info = fill(stack.enter_context(Wire(daemon.socket)))
                total += count
        assert info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
        assert f"at most {total}" in info.expected
        return total

    with Wire(daemon.socket) as monitor:
        monitor.hello()
        limit = fill_all()
        wait_until(lambda: daemon.status().session_count == 1)
        assert fill_all() == limit


def test_a_limit_that_cannot_work_is_refused_by_name() -> None:
    for name in ResourceLimits.__struct_fields__:
        with pytest.raises(Refused) as caught:
            DaemonSettings(socket="x", limits=ResourceLimits(**{name: -1})).check()
        assert option_name(name) in caught.value.info.object


@pytest.mark.quick
def test_a_quota_refuses_exactly_what_is_beyond_it() -> None:
    quota = Quota(10, "user-things", "things", "user 7", "thing")
    quota.check(10)
    account = Account(quota)
    account.set(9)
    quota.check()
    with pytest.raises(Refused) as caught:
        quota.check(2)
    assert quota.refusals == 1
    assert "2 things asked for, user 7 has 9" in caught.value.info.found
    account.set(8)
    quota.check(2)


@pytest.mark.quick
def test_an_account_counts_in_all_above_it_until_its_owner_ends() -> None:
    shown: list[int] = []
    device = Account(show=lambda: shown.append(device.used))
    everybody = Quota(10, "", "things", "all users", "thing")
    user = Quota(8, "user-things", "things", "user 7", "thing", above=(everybody,))
    session, other = Account(user, device), Account(user, device)
    session.set(5)
    other.set(3)
    assert (user.used, everybody.used, device.used) == (8, 8, 8)
    with pytest.raises(Refused) as caught:
        user.check()
    assert "user 7" in caught.value.info.found
    session.set(2)
    Account(everybody).set(4)  # nobody has it
    del other
    assert (user.used, everybody.used, device.used) == (2, 2, 2)
    whole = everybody.hold()
    whole.set(8)
    with pytest.raises(Refused) as caught:
        user.check()
    assert "all users" in caught.value.info.found, "a quota asks those above it"
    session.close()
    session.close()
    assert (user.used, everybody.used, device.used) == (0, 8, 0)
    assert shown[-1] == 0


def test_the_limits_on_the_command_line(private_dir: Path) -> None:
    help_text = softnpu("daemon", "--help", COLUMNS="400").words
    for name in ResourceLimits.__struct_fields__:
        assert option_name(name) in help_text
    place = ("daemon", "--socket", str(private_dir / "npu.sock"))
    assert "user-cakes" in softnpu(*place, "--limit", "user-cakes=3").misuse
    assert "'many'" in softnpu(*place, "--limit", "user-queues=many").misuse
    assert "user-queues" in softnpu(*place, "--limit", "user-queues=0").misuse


@pytest.mark.quick
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
        data=bytes(length), uses=frozenset({1}), steps=(), commands=1, inferences=inferences, journaled=False
    )


def _engine_context(share: Share) -> EngineContext:
    """Return a context with the handles that programs are kept for."""
    context = EngineContext(1, 1, os.eventfd(0), share, Staging(-1), lambda: None)
    for handle in (1, 7, 8):
        context.space.add_graph(handle, EngineImage(handle, memoryview(b"")))
    return context


def test_what_an_engine_keeps_decoded_for_a_session_has_a_limit() -> None:
    share = Share()
    contexts = [_engine_context(share) for _ in range(8)]
    normal = _program(4096, inferences=64)
    contexts[0].programs.add(7, 0, normal)
    contexts[0].programs.add(7, 0, normal)
    assert contexts[0].programs.get(7, 0, bytes(4096)) is normal
    assert share.kept_bytes == 16 * 4096 + 64 * 4096
    for context in contexts:
        for offset in range(200):
            context.programs.add(7, offset, _program(256 * 1024))
            assert share.kept_bytes <= SESSION_BYTES
    contexts[0].programs.add(8, 0, _program(64, inferences=10**6))
    assert contexts[0].programs.get(8, 0, bytes(64)) is None, "more than a session may have alone"
    contexts[1].drop(7)
    for context in contexts:
        context.close()
    assert share.kept_bytes == 0


@pytest.mark.parametrize("gone", ["a handle that it uses", "its buffer", "its context"])
def test_a_program_is_not_kept_if_something_of_it_went_while_it_was_decoded(gone: str) -> None:
    context = _engine_context(Share())
    match gone:
        case "a handle that it uses":
            context.drop(1)
        case "its buffer":
            context.drop(7)
        case _:
            context.close()
    context.programs.add(7, 0, _program(4096))
    assert context.programs.get(7, 0, bytes(4096)) is None
    assert context.share.kept_bytes == 0
    if gone != "its context":
        context.close()
