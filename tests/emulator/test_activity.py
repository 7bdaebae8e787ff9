"""The daemon's report of sessions, models, compilations: right, bounded, never decreasing after a death."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, GraphSource, ZeError
from softnpu.emulator.common.model_texts import listed
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.frames import MAX_BODY
from softnpu.emulator.interface.records import LATENCY_BOUNDS_NS, Latency
from softnpu.emulator.supervisor.observe import activity_answer
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_gone, wait_until
from tests.support.work import Loaded, barrier, execute, waits

pytestmark = pytest.mark.quick


class _Look:
    """The activity of a daemon at one moment."""

    def __init__(self, monitor: Driver) -> None:
        parts = monitor.activity()
        self.sessions = {each.session: each for part in parts for each in part.sessions}
        self.models = [each for part in parts for each in part.models]
        self.engine = monitor.status().engines[0]
        self.times = {each.of: each for each in parts[0].histograms}

    @property
    def counters(self) -> list[int]:
        """All counters that may only grow."""
        mine = [(each.busy_ns, each.submissions, each.inferences) for each in self.sessions.values()]
        models = [(each.inferences, each.busy_ns) for each in self.models]
        times = [(*each.counts, each.sum_ns) for each in self.times.values()]
        engine = (self.engine.busy_ns, self.engine.inferences, self.engine.restarts, self.engine.read_bytes)
        return [number for group in (*mine, *models, *times, engine) for number in group]


def test_inferences_are_counted_alike_everywhere_and_a_dead_engine_takes_none_with_it(
    daemon: Daemon, driver: Driver, context: Context, digits: Path
) -> None:
    with Driver.open(daemon.socket, role="monitor") as monitor:
        model, queue = Loaded(context, digits), context.create_command_queue()
        for _ in range(3):
            model.infer(queue)
        first = _Look(monitor)
        daemon.kill_engine()
        daemon.wait_restarted(1)
        model.infer(queue)
        context.create_command_queue().destroy()
        second = _Look(monitor)

    session, (known,) = second.sessions[driver.session], second.models
    assert first.sessions[driver.session].inferences == 3
    assert (session.inferences, session.submissions, second.engine.inferences) == (4, 4, 4)
    assert (known.inferences, sum(second.times["inference"].counts)) == (4, 4)
    assert known.busy_ns == second.times["inference"].sum_ns > 0
    assert session.busy_ns == second.engine.busy_ns
    assert (known.name, known.state, known.sessions, known.graphs) == ("digits", "loaded", 1, 1)
    assert session.models == (known.model,)
    assert sum(second.times["load"].counts) == 2, "the next engine has loaded it again"
    assert sum(second.times["compiled"].counts) == 1
    assert [each.of for each in second.times.values()] == [latency.name.lower() for latency in Latency]
    pairs = zip(first.counters, second.counters, strict=True)
    assert [pair for pair in pairs if pair[0] > pair[1]] == []


def test_a_session_says_what_it_waits_for_and_how_much(
    daemon: Daemon, driver: Driver, context: Context
) -> None:
    queue, gate = context.create_command_queue(), context.create_event()
    with Driver.open(daemon.socket, role="monitor") as monitor:

        def found() -> tuple[str, int, int]:
            look = _Look(monitor)
            session = look.sessions[driver.session]
            return session.state, session.queued, look.engine.queued

        assert found() == ("idle", 0, 0)
        fences = [execute(queue, waits(context, gate)), execute(queue, barrier(context))]
        wait_until(lambda: found() == ("event", 2, 2))
        gate.host_signal()
        for fence in fences:
            fence.host_synchronize()
        wait_until(lambda: found() == ("idle", 0, 0))
        spent = _Look(monitor).sessions[driver.session].busy_ns
        queue.destroy()
        assert _Look(monitor).sessions[driver.session].busy_ns == spent, "a queue that has ended counts"


def test_a_compilation_is_listed_with_its_stage_and_a_failed_one_is_counted(
    start_daemon: StartDaemon, digits: Path
) -> None:
    daemon = start_daemon(failpoints="compiler.completing=sleep(3000)")
    with Driver.open(daemon.socket) as driver, Driver.open(daemon.socket, role="monitor") as monitor:
        context = driver.devices[0].create_context()
        with GraphSource.from_ir(digits) as source, ThreadPoolExecutor() as pool:
            under_way = pool.submit(context.create_graph, source)
            job = wait_until(lambda: next(iter(monitor.activity()[0].compilations), None))
            assert job is not None
            assert (job.session, job.device, job.kind, job.name) == (driver.session, 0, "compile", "digits")
            wait_until(lambda: [each.stage for each in monitor.activity()[0].compilations] == ["pack"])
            assert monitor.activity()[0].sessions[0].state == "compile"
            under_way.result(60)
            refused = pool.submit(context.create_graph, source, {"NPU_TILES": "99"})
            assert isinstance(refused.exception(60), ZeError)
        assert monitor.activity()[0].compilations == ()
        assert monitor.status().engines[0].build_failures == 1


def test_an_answer_of_the_largest_size_fits_into_a_frame() -> None:
    name = listed("\N{SNOWMAN}" * 100, activity_answer._NAME)
    session = msg.SessionActivity(
        session=2**40, pid=2**22, start_time=2**40, client="c" * 64, uid=2**32 - 2, age_s=1e6,
        state="compile", memory_used=2**40, contexts=64, allocations=65536, queues=1024, graphs=1024,
        busy_ns=2**60, submissions=2**50, inferences=2**50, queued=2**22, devices=tuple(range(8)),
        models=tuple(2**33 + number for number in range(16)),
    )  # fmt: skip
    model = msg.ModelActivity(
        model=2**40, device=7, name=name, state="compiled", memory=2**40, sessions=2000, graphs=8192,
        inferences=2**50, busy_ns=2**60, age_s=1e6,
    )  # fmt: skip
    job = msg.CompilationActivity(
        session=2**40, device=7, kind="compile", name=name, stage="s" * activity_answer._STAGE, done=0.5,
        age_s=1e6, worker=2**22,
    )  # fmt: skip
    histogram = msg.Histogram(
        device=7, of="inference", counts=(2**50,) * (len(LATENCY_BOUNDS_NS) + 1), sum_ns=2**60
    )
    answer = msg.ActivityAnswer(
        time_ns=2**62,
        sessions=(session,) * activity_answer._LISTED,
        models=(model,) * activity_answer._LISTED,
        more=True,
        compilation_count=256,
        compilations=(job,) * activity_answer._LISTED_COMPILATIONS,
        histograms=(histogram,) * 8 * len(Latency),
    )
    assert len(msg.encode(answer)) <= MAX_BODY


def test_names_are_listed_printable_in_one_line_and_cut_at_a_character() -> None:
    assert listed("a\x1b[31m\nb\u202e", 64) == "a?[31m?b?"
    assert listed("\N{SNOWMAN}" * 10, 10) == "\N{SNOWMAN}" * 3
    assert listed("\udce4", 64) == "?"


def test_many_sessions_come_in_parts(daemon: Daemon, digits: Path) -> None:
    drivers = [Driver.open(daemon.socket) for _ in range(activity_answer._LISTED + 3)]
    try:
        context = drivers[-1].devices[0].create_context()
        with (
            GraphSource.from_ir(digits) as source,
            context.create_graph(source),
            Driver.open(daemon.socket, role="monitor") as monitor,
        ):
            parts = monitor.activity()
        assert [len(part.sessions) for part in parts] == [activity_answer._LISTED, 3]
        assert {each.session for part in parts for each in part.sessions} == {
            driver.session for driver in drivers
        }
        assert [len(part.models) for part in parts] == [1, 0]
        assert [bool(part.histograms) for part in parts] == [True, False]
    finally:
        for driver in drivers:
            driver.destroy()


def test_an_idle_daemon_stays_for_its_keeper_but_not_for_who_only_looks_on(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(idle_timeout_s=0.1, tuning=Tuning(first_client_s=0.2))
    with Driver.open(daemon.socket, role="monitor"):
        with (
            Driver.open(daemon.socket, role="keeper"),
            pytest.raises(AssertionError, match="still lives"),
        ):
            wait_gone(daemon.pid, 0.5)
        wait_gone(daemon.pid)
