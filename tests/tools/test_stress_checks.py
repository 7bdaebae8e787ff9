"""Defects that clients of `softnpu stress` detect, for each operation and each kind of memory."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest

from softnpu.driver import CommandList, CommandQueue, Context, Driver, Fence
from softnpu.emulator.common import failpoints
from softnpu.tools.stress import daemon, operations, progress_page
from softnpu.tools.stress.checking import ArgumentMemory, Inference, WrongResult, check
from softnpu.tools.stress.coordinator import make_references
from softnpu.tools.stress.failure_report import Report
from softnpu.tools.stress.journal import Journal, SubmissionNote
from softnpu.tools.stress.patterns import Pattern, patterns_in
from softnpu.tools.stress.plan import FAULTS, Step
from softnpu.tools.stress.reports import Failure, Setup, StartClient
from softnpu.tools.stress.run_history import RunHistory
from softnpu.tools.stress.worker import Worker
from softnpu.tools.stress.workloads import Array, Samples, Workload
from tests.support.daemon import Daemon

_MODELS = ("convolutions", "running-sums")


# ------------------------------------------------------------ operations on a no-op device


@pytest.fixture(scope="module")
def workloads(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Workload, Samples]]:
    folder = tmp_path_factory.mktemp("references")
    return [(workload, Samples(workload)) for workload in make_references(folder, 1, _MODELS)]


class _Pair:
    """Two clients in this process; the first one performs the steps."""

    def __init__(self, daemon: Daemon, folder: Path, workloads: list[tuple[Workload, Samples]]) -> None:
        fd, progress = progress_page.create(2)
        setup = Setup(
            socket=str(daemon.socket), folder=str(folder), progress_fd=fd, seed=1, clients=2, kill=False,
            faults=False,
        )  # fmt: skip
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs = theirs
        self.clients = [
            Worker(setup, StartClient(client=number, incarnation=0, step=0), progress, workloads, theirs)
            for number in (0, 1)
        ]
        os.close(fd)
        for client in self.clients:
            client.open()

    def close(self) -> None:
        for client in self.clients:
            client.share(0, 0, None)
            client.session.close()
        self.ours.close()
        self._theirs.close()


@pytest.fixture
def pair(
    shared_daemon: Daemon, private_dir: Path, workloads: list[tuple[Workload, Samples]]
) -> Iterator[_Pair]:
    made = _Pair(shared_daemon, private_dir, workloads)
    yield made
    made.close()


def _step(workload: int, seed: int) -> Step:
    return Step(number=7, operation="infer", workload=workload, sample=2, seed=seed, death=None)


_SEEDS = {"infer": (0, 4, 8), "states": (0, 64)}
"""Seeds of a step that choose each way to wait, and states in place or not."""


@pytest.mark.parametrize(
    "operation", ["infer", "burst", "batch", "states", "cancel", "compile", "import", "remote"]
)
def test_a_skipped_inference_is_noticed(pair: _Pair, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Even where its memory already has the right numbers of the same inference."""
    client, other = pair.clients
    operations.share(other, _step(0, 0))
    run = operations.ALL[operation]
    honest = CommandQueue.execute_command_lists

    def skip(queue: CommandQueue, lists: Sequence[CommandList], fence: Fence | None = None) -> None:
        nothing = cast(Context, queue.context).create_command_list()
        nothing.append_barrier()
        nothing.close()
        # a list that waits for a gate is not an inference
        honest(queue, [entry if entry in gates else nothing for entry in lists], fence)

    gates: list[CommandList] = []
    wait_on = CommandList.append_wait_on_events

    def noted(commands: CommandList, *arguments: object) -> None:
        gates.append(commands)
        wait_on(commands, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CommandList, "append_wait_on_events", noted)
    for seed in _SEEDS.get(operation, (0,)):
        step = _step(0, seed)
        client.session.journal.begin(step)
        assert run(client, step) > 0
        with monkeypatch.context() as patched:
            patched.setattr(CommandQueue, "execute_command_lists", skip)
            with pytest.raises(WrongResult) as caught:
                run(client, step)
        finding = caught.value.finding
        assert finding is not None
        inference = finding.inference
        outputs = [output for output in finding.outputs if output.what.startswith("output")]
        assert outputs
        assert all(inference.pattern.untouched_in(output.raw).all() for output in outputs)
        client.reconnect()
    gates.clear()  # they would keep device memory


# ------------------------------------------------------------ comparisons


class _Fixed(Samples):
    """One sample, made up by a test."""

    def __init__(self) -> None:
        self.given = np.arange(6, dtype=np.float32)
        self.made = np.array([0.0, -1.0, np.nan], np.float32)
        self.state = np.array([5], np.int32)

    def inputs(self, sample: int, step: int = 0) -> list[Array]:
        del sample, step
        return [self.given]

    def outputs(self, sample: int, step: int = 0) -> list[Array]:
        del sample, step
        return [self.made]

    def states(self, sample: int, step: int = 0) -> list[Array]:
        del sample, step
        return [self.state]


def _bytes(array: Array) -> Array:
    return np.frombuffer(array.tobytes(), np.uint8).copy()


@pytest.fixture
def right() -> Inference:
    """An inference with the right result."""
    samples = _Fixed()
    workload = Workload(name="made up", xml="", archive="", inputs=1, outputs=1, samples=1, steps=1)
    note = SubmissionNote(step=0, model="made up", sample=0, inference=0, pattern=1, fed_ns=0)
    behind = np.full(4, 9, np.uint8)
    return Inference(
        workload, samples, 0, 0,
        inputs=[ArgumentMemory("data", _bytes(samples.given), 1)],
        outputs=[ArgumentMemory("result", _bytes(samples.made), 2)],
        states=[ArgumentMemory("total", _bytes(samples.state), 3)],
        pattern=Pattern(0, 1), note=note, rest=[(behind, behind.tobytes())],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (lambda it: it.inputs[0].view, "input 0: 1 of 6 numbers"),
        (lambda it: it.outputs[0].view, "output 0: 1 of 3 numbers"),
        (lambda it: it.states[0].view, "state 0: 1 of 1 numbers"),
        (lambda it: it.rest[0][0], "memory behind argument 0 was written"),
    ],
)
def test_one_wrong_bit_is_noticed(right: Inference, place: Callable[[Inference], Array], said: str) -> None:
    check(right)
    place(right)[3] ^= 0x80  # the sign of the first number: 0.0 and -0.0 have different bits
    with pytest.raises(WrongResult, match=said):
        check(right)
    right.outputs[0].view = right.outputs[0].view[:8]
    with pytest.raises(WrongResult, match=r"output 0 has 8 bytes; expected 12|input 0: 1 of 6"):
        check(right)


def test_changes_after_the_end_are_noticed(pair: _Pair) -> None:
    client = pair.clients[0]
    loaded = client.session.loaded(0)
    loaded.infer(client.session.queue, 1)
    loaded.memory[loaded.first_output].view()[0] ^= 1
    with pytest.raises(WrongResult, match="which had been right when it ended"):
        loaded.feed(2)


# ------------------------------------------------------------ patterns, journal, history


@pytest.mark.parametrize("size", [1, 3, 8, 20, 4096])
def test_a_pattern_is_found_where_nothing_was_written(size: int) -> None:
    memory = np.zeros(size, np.uint8)
    pattern = Pattern(client=300, number=0x00A51234)
    pattern.fill(memory)
    assert pattern.untouched_in(memory.tobytes()).all()
    assert not Pattern(300, 0x00A51235).untouched_in(memory.tobytes())[: size - size % 8].any()
    assert patterns_in(memory.tobytes()) == ({pattern: size // 8} if size >= 8 else {})
    memory[0] ^= 1
    assert np.count_nonzero(pattern.untouched_in(memory.tobytes())) == max(0, size - 8)


def test_every_incarnation_of_a_client_has_its_own_patterns() -> None:
    one, other = Journal(3, incarnation=1), Journal(3, incarnation=2)
    assert one.fed("m", 0, 0)[0] != other.fed("m", 0, 0)[0]
    pattern, note = one.fed("m", 1, 0)
    assert one.of_pattern(pattern.number) is note


def test_the_director_adds_what_happened_to_the_run(private_dir: Path) -> None:
    fd, progress = progress_page.create(2)
    os.close(fd)
    row = progress.row(1)
    row[progress_page.Field.PID], row[progress_page.Field.STEP], row[progress_page.Field.SESSION] = 77, 5, 9
    row[progress_page.Field.FAULT], row[progress_page.Field.FAULT_NS] = FAULTS.index("ecc"), 1
    path = private_dir / "report.json"
    report = Report(
        text="", seed=1, client=0, incarnation=0, pid=1, session=1, daemon_pid=1, step=1, operation="",
        found_ns=1,
    )  # fmt: skip
    path.write_bytes(report.encode())
    history = RunHistory()
    history.note("engine 0 (pid 5) is killed")
    history.complete(path, progress)
    told = path.read_text()
    assert "client 1 injected 'ecc' into its session 9" in told
    assert "engine 0 (pid 5) is killed" in told
    assert '"client": 1,\n        "pid": 77,\n        "step": 5' in told


def test_findings_are_reported_even_if_their_report_fails(
    pair: _Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr("softnpu.tools.stress.worker.Diagnosis.report", fail)
    with pytest.raises(OSError, match="no room"):
        pair.clients[0].report_failure("wrong", "12 of 12 numbers", None)
    failure = msgspec.json.decode(pair.ours.recv(1 << 16), type=Failure)
    assert (failure.kind, failure.text, failure.report) == ("wrong", "12 of 12 numbers", "")
    assert failure.details[0].startswith("no report: OSError: no room")


def test_an_endless_wait_has_a_report_too(pair: _Pair, private_dir: Path) -> None:
    pair.clients[0].report_failure("hang", "an inference had not ended", None)
    failure = msgspec.json.decode(pair.ours.recv(1 << 16), type=Failure)
    report = msgspec.json.decode(Path(failure.report).read_bytes(), type=Report)
    assert Path(failure.report).is_relative_to(private_dir / "reports")
    assert [queue.lost for queue in report.queues] == [False, False]
    assert report.engines[0].state == "ready"


def test_a_private_daemon_is_not_idle_while_there_is_no_client_yet() -> None:
    with daemon.target(None) as found, Driver.open(found.socket, autostart=False, role="monitor") as monitor:
        (user,) = monitor.status().users
        assert user.connections == 2, "one that lasts as long as the run, and this one"
    assert found.failures == []
    assert not found.folder.exists()


def test_a_small_model_is_the_same_alone_and_among_others(
    private_dir: Path, workloads: list[tuple[Workload, Samples]]
) -> None:
    (alone,) = make_references(private_dir, 1, ["running-sums"])
    among = next(workload for workload, _ in workloads if workload.name == "running-sums")
    assert (
        Path(alone.xml).with_suffix(".bin").read_bytes() == Path(among.xml).with_suffix(".bin").read_bytes()
    )
    assert alone.states == ["count", "total"]


def test_a_client_with_a_finding_is_not_killed_before_reporting_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "active", failpoints.Plan({}, None))
    try:
        signal.setitimer(signal.ITIMER_REAL, 3600)
        Worker.cancel_death()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert failpoints.active is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
