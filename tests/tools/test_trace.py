"""`softnpu trace`: traces of programs that live, die or are hostile, and no leftovers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from softnpu.driver import Driver, ZeError, ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import trace
from softnpu.emulator.interface import trace_messages as tracing
from softnpu.emulator.interface.trace import TraceFlag, TraceKind, TraceWriter
from softnpu.emulator.interface.trace_messages import TraceRing
from softnpu.emulator.supervisor.tuning import Tuning
from softnpu.tools.trace import chrome
from softnpu.tools.trace.collector import Collector, Recording, collecting
from softnpu.tools.trace.ring_reader import Records, RingReader
from softnpu.tools.trace.timeline import Timeline, timeline_of
from tests.conftest import StartDaemon, StartPython
from tests.support.chrome_trace import ChromeTrace
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

PYTHON_PROGRAM = """
import sys
import numpy as np
from softnpu.plugin import Core
compiled = Core().compile_model(sys.argv[1], "NPU")
request = compiled.create_infer_request()
for _ in range(25):
    request.infer({0: np.zeros((1, 1, 8, 8), np.float32)})
sys.exit(7)
"""
NATIVE_PROGRAM = """
import sys
import numpy as np
import openvino as ov
core = ov.Core()
queue = ov.AsyncInferQueue(core.compile_model(core.read_model(sys.argv[1]), "NPU"), 2)
for _ in range(25):
    queue.start_async([np.zeros((1, 1, 8, 8), np.float32)])
queue.wait_all()
sys.exit(7)
"""
CLIENT = """
with Driver.open(given["socket"]) as driver:
    context = driver.devices[0].create_context()
    queue = context.create_command_queue()
    fence = queue.create_fence()
    memory = context.alloc_host(4096)
    commands = recorded(context, lambda c: c.append_memory_fill(memory, b"x", 4096))
    blocked = context.create_event_pool(1).create_event()
    waiting = recorded(context, lambda c: c.append_wait_on_events([blocked]))
    def work(count):
        for _ in range(count):
            queue.execute_command_lists([commands], fence)
            fence.host_synchronize()
            fence.reset()
    from softnpu.driver import tracing
    from softnpu.driver.command_queue import CommandQueue
    say("up")
    while (count := hear()) is not None:
        if count < 0:
            queue.execute_command_lists([waiting], fence)
            say(0)
            fence.host_synchronize()
        work(count)
        say([len(tracing._calls), hasattr(CommandQueue.execute_command_lists, "__wrapped__")])
"""


def _traced(daemon: Daemon, path: Path, *arguments: str | Path, **environment: str) -> ChromeTrace:
    done = softnpu("trace", "-o", path, *arguments, **environment)
    assert done.code == 7, done.err
    assert "25 submissions, 25 inferences" in done.err
    assert done.out == ""
    assert daemon.alive
    return ChromeTrace(path)


def _check_counts(found: ChromeTrace, submissions: int) -> None:
    said = found.said
    assert said["lost"] == said["invalid"] == said["refused"] == 0
    assert said["submissions"] == said["counted_submissions"] == submissions
    assert said["inferences"] == said["counted_inferences"] == submissions
    assert len([event for event in found.of("X", "execution") if event["args"]["ended"]]) == submissions
    assert [len(found.of(phase)) for phase in "stf"] == [submissions] * 3


@pytest.mark.quick
def test_a_python_program_from_its_calls_to_the_device(
    cli_daemon: Daemon, native_dir: dict[str, str], digits: Path, tmp_path: Path
) -> None:
    line = ["--", sys.executable, "-c", PYTHON_PROGRAM, str(digits)]
    found = _traced(cli_daemon, tmp_path / "trace.json", "--layers", *line, **native_dir)
    _check_counts(found, 25)
    calls = found.names("call")
    assert calls["InferRequest.infer"] == calls["zeFenceHostSynchronize"] == 25
    assert calls["zeCommandQueueExecuteCommandLists"] == 25
    assert found.inside("InferRequest.infer", "zeCommandQueueExecuteCommandLists")
    assert found.names("request")["graph_create"] == found.names("request")["queue_create"] == 1
    assert found.names("compilation")["compile_job"] == 1
    assert found.names("execution") == {"digits": 25}
    assert found.names("load") == {"load digits": 1}
    # OpenVINO counts whole microseconds, and reports a layer that took none as not run
    assert max(found.names("layer").values()) == 25
    assert found.names("event")["session ends: it closed the connection"] == 1
    counters = {event["name"] for event in found.of("C")}
    assert {"queue depth of NPU.0", "memory of NPU.0"} < counters
    last = {event["name"]: event["args"]["value"] for event in found.of("C")}
    assert last["queue depth of NPU.0"] == 0


def test_an_unmodified_program(
    cli_daemon: Daemon, native_dir: dict[str, str], digits: Path, tmp_path: Path
) -> None:
    line = ["--", sys.executable, "-c", NATIVE_PROGRAM, str(digits)]
    found = _traced(cli_daemon, tmp_path / "trace.json", *line, **native_dir)
    _check_counts(found, 25)
    calls = found.names("call")
    assert calls["zeCommandQueueExecuteCommandLists"] == calls["zeFenceHostSynchronize"] == 25
    assert calls["pfnCreate2"] + calls["pfnCreate3"] == calls["pfnGraphInitialize"] == 1
    assert len({event["pid"] for event in found.of("X", "call")}) == 1


@pytest.mark.download
def test_perfetto_reads_it(
    cli_daemon: Daemon, native_dir: dict[str, str], digits: Path, tmp_path: Path
) -> None:
    processor = pytest.importorskip("perfetto.trace_processor")
    fetched = sorted((Path.home() / ".local/share/perfetto/prebuilts").glob("trace_processor_shell*"))
    shell = shutil.which("trace_processor_shell") or next(map(str, fetched), None)
    if shell is None:
        pytest.skip("Perfetto's trace_processor is not here; its package would download it")
    path = tmp_path / "trace.json"
    _traced(cli_daemon, path, "--", sys.executable, "-c", PYTHON_PROGRAM, digits, **native_dir)
    config = processor.TraceProcessorConfig(bin_path=shell)
    with processor.TraceProcessor(trace=str(path), config=config) as perfetto:
        flows, spans, errors = (
            next(iter(perfetto.query(text))).n
            for text in (
                "select count(*) as n from flow",
                "select count(*) as n from slice where category = 'execution'",
                "select sum(value) as n from stats where severity = 'error'",
            )
        )
    assert (flows, spans, errors) == (50, 25, 0)


@pytest.mark.usefixtures("cli_daemon")
def test_a_file_that_cannot_be_written_is_refused_before_the_program_runs(
    native_dir: dict[str, str], tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    program = ("--", "sh", "-c", f"touch {ran}; exit 7")
    for place, said in (("/proc/x.json", "/proc/x.json"), (str(tmp_path / "no" / "x.json"), "no folder")):
        assert said in softnpu("trace", "-o", place, *program, **native_dir).complaint
        assert not ran.exists()

    said = json.loads(softnpu("trace", "--json", "-o", tmp_path / "y.json", "--", "true", **native_dir).words)
    assert (said["file"], said["size"]) == (str(tmp_path / "y.json"), (tmp_path / "y.json").stat().st_size)
    assert (said["complete"], said["lost"], said["submissions"]) == (True, 0, 0)

    done = softnpu("trace", "-o", tmp_path / "x.json", "--", "/no/such", **native_dir)
    assert done.code == 127
    assert not (tmp_path / "x.json").exists(), "nothing was traced"


@pytest.mark.usefixtures("cli_daemon")
def test_the_exit_code_is_the_programs_also_when_the_trace_cannot_be_written(
    native_dir: dict[str, str],
) -> None:
    done = softnpu("trace", "-o", "/dev/full", "--", "sh", "-c", "echo ran; exit 7", **native_dir)
    assert (done.code, done.out) == (7, "ran\n")
    assert done.err == "softnpu: /dev/full: No space left on device\n"


# ---------------------------------------------------------------- programs that come, go and die


@contextmanager
def _monitor(daemon: Daemon) -> Iterator[Driver]:
    with Driver.open(daemon.socket, role="monitor") as driver:
        yield driver


def test_a_running_program_joins_and_leaves(shared_daemon: Daemon, start_python: StartPython) -> None:
    client = start_python(CLIENT, socket=str(shared_daemon.socket))
    assert client.hear() == "up"
    with _monitor(shared_daemon) as driver:
        for _ in range(2):
            client.tell(1)
            assert client.hear() == [0, False]
            with collecting(driver) as collector:
                client.tell(3)
                assert client.hear() == [1, True]
                recording = collector.finish()
            found = timeline_of(recording)
            assert recording.complete
            assert found.submissions == found.counted_submissions == 3
            assert [step.phase for step in found.steps].count("f") == 3
            assert sum(span.name == "zeFenceHostSynchronize" for span in found.spans) == 3
        client.tell(1)
        assert client.hear() == [0, False]  # as before: nothing slows its calls
    client.tell(None)
    client.finish()


def test_a_killed_program_loses_no_written_record(shared_daemon: Daemon, start_python: StartPython) -> None:
    with _monitor(shared_daemon) as driver, collecting(driver) as collector:
        client = start_python(CLIENT, socket=str(shared_daemon.socket))
        assert client.hear() == "up"
        client.tell(40)
        client.hear()
        client.tell(-1)
        assert client.hear() == 0
        wait_until(lambda: _waits(collector, client.process.pid), what="a wait that has begun")
        client.process.send_signal(signal.SIGKILL)
        client.process.wait()
        wait_until(lambda: any(ring.info.role == "client" for ring in _polled(collector).rings))
        found = timeline_of(collector.finish())
    mine = [span for span in found.spans if span.place.pid == client.process.pid]
    assert sum(span.name == "zeCommandQueueExecuteCommandLists" for span in mine) == 41
    waits = [span for span in mine if span.name == "zeFenceHostSynchronize"]
    assert [span.args.get("unfinished", False) for span in waits] == [False] * 40 + [True]
    assert any(instant.name.startswith("session ends") for instant in found.instants)
    assert found.submissions == found.counted_submissions


def _polled(collector: Collector) -> Recording:
    collector.poll()
    return collector.recording


def _waits(collector: Collector, pid: int) -> bool:
    """Return whether the last record of this process is a wait that has begun."""
    collector.poll()
    for ring in collector._open.values():
        if ring.reader.info.pid == pid and ring.parts:
            last = ring.parts[-1][-1]
            return bool(last["kind"] == TraceKind.CALL and last["flags"] == TraceFlag.BEGIN)
    return False


def test_the_death_of_an_engine_is_traced(daemon: Daemon, start_python: StartPython) -> None:
    with _monitor(daemon) as driver, collecting(driver) as collector:
        client = start_python(CLIENT, socket=str(daemon.socket))
        assert client.hear() == "up"
        client.tell(5)
        client.hear()
        os.kill(daemon.engine().engine_pid, signal.SIGKILL)
        client.tell(5)
        client.hear()
        found = timeline_of(collector.finish())
        client.tell(None)
        client.finish()
    assert found.submissions == found.counted_submissions == 10
    names = [instant.name for instant in found.instants]
    assert names.index("engine ended with signal 9") < names.index("engine ready")
    engines = {pid for pid, name in found.processes.items() if name == "engine of NPU.0"}
    assert len(engines) == 2


def test_a_killed_tracer_leaves_nothing_behind(
    shared_daemon: Daemon, start_python: StartPython, tmp_path: Path
) -> None:
    client = start_python(CLIENT, socket=str(shared_daemon.socket))
    assert client.hear() == "up"
    line = [sys.executable, "-P", "-m", "softnpu.tools.cli", "trace", "attach"]
    line += ["-o", str(tmp_path / "x.json"), "--socket", str(shared_daemon.socket)]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as tracer:

        def traced() -> bool:
            client.tell(1)
            return bool(client.hear() == [1, True])

        wait_until(traced, what="the client is traced")
        pids = (shared_daemon.pid, shared_daemon.engine().engine_pid, client.process.pid)
        assert all(_maps_rings(pid) for pid in pids)
        tracer.kill()
    wait_until(lambda: not traced(), what="the client is not traced any more")
    wait_until(lambda: not any(_maps_rings(pid) for pid in pids), what="rings are given back")
    assert "its reader has left" in shared_daemon.log
    client.tell(None)
    client.finish()


def test_a_hanging_tracer_is_ignored(start_daemon: StartDaemon, start_python: StartPython) -> None:
    daemon = start_daemon(tuning=Tuning(trace_silence_s=0.3))
    client = start_python(CLIENT, socket=str(daemon.socket))
    assert client.hear() == "up"
    with _monitor(daemon) as driver, collecting(driver) as collector:

        def traced() -> bool:
            client.tell(1)
            return bool(client.hear() == [1, True])

        wait_until(lambda: not traced(), what="the trace is over")
        assert "has not asked for rings" in daemon.log
        wait_until(lambda: not any(_maps_rings(pid) for pid in (daemon.pid, client.process.pid)))
        assert not collector.finish().complete
    client.tell(None)
    client.finish()


def _maps_rings(pid: int) -> bool:
    files = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return "softnpu-trace" in Path(f"/proc/{pid}/maps").read_text() or any(
        "softnpu-trace" in file for file in files
    )


# ---------------------------------------------------------------- permissions and refusals


def test_what_the_daemon_refuses(shared_daemon: Daemon) -> None:
    with (
        _monitor(shared_daemon) as driver,
        _monitor(shared_daemon) as other,
        Driver.open(shared_daemon.socket) as session,
    ):
        cases: list[tuple[Driver, msg.Message, ZeResult]] = [
            (driver, tracing.TraceRings(), ZeResult.ERROR_INVALID_ARGUMENT),
            (driver, tracing.TraceStop(), ZeResult.ERROR_INVALID_ARGUMENT),
            (session, tracing.TraceJoin(trace=1), ZeResult.ERROR_INVALID_ARGUMENT),
            (driver, tracing.TraceJoin(trace=1), ZeResult.ERROR_INSUFFICIENT_PERMISSIONS),
            *(
                (driver, tracing.TraceStart(records=records), ZeResult.ERROR_INVALID_SIZE)
                for records in (-64, 0, 32, 1000, 1 << 19, 2**62)
            ),
        ]
        for sender, request, result in cases:
            assert _refusal(sender, request) == result, request
        with collecting(driver) as collector:
            number = session._connection.trace
            session._connection.check("test")  # joins
            taken: list[tuple[Driver, msg.Message, ZeResult]] = [
                (other, tracing.TraceStart(), ZeResult.ERROR_NOT_AVAILABLE),
                (other, tracing.TraceRings(), ZeResult.ERROR_INVALID_ARGUMENT),
                (other, tracing.TraceStop(), ZeResult.ERROR_INVALID_ARGUMENT),
                (session, tracing.TraceJoin(trace=number), ZeResult.ERROR_INVALID_ARGUMENT),
                (session, tracing.TraceJoin(trace=number + 1), ZeResult.ERROR_INVALID_ARGUMENT),
            ]
            for sender, request, result in taken:
                assert _refusal(sender, request) == result, request
            rings = collector.finish().rings
        assert [ring.info.role for ring in rings] == ["supervisor", "engine", "client"]
        assert session._connection.trace == 0


def _refusal(driver: Driver, request: msg.Message) -> int:
    with pytest.raises(ZeError) as caught:
        driver._connection.request("test", request, msg.Ok)
    return int(caught.value.result)


# ---------------------------------------------------------------- rings


@contextmanager
def _ring(records: int) -> Iterator[tuple[TraceWriter, RingReader, int]]:
    fd = linux.memfd("trace-test", trace.ring_size(records))
    try:
        info = TraceRing(ring=1, role="client", pid=1, records=records)
        yield TraceWriter(fd, records), RingReader(info, os.dup(fd)), fd
    finally:
        os.close(fd)


def _write(writer: TraceWriter, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        writer.write(TraceKind.CALL, writer.name("call"), time.monotonic_ns(), first=number)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 1000])
def test_overwritten_records_count_as_lost(count: int) -> None:
    with _ring(64) as (writer, reader, _):
        _write(writer, count)
        found = reader.read(final=True)["first"].tolist()
        assert found == list(range(max(0, count - 64), count))
        assert reader.lost == max(0, count - 64)
        _write(writer, 10, count)
        assert reader.read(final=True)["first"].tolist() == list(range(count, count + 10))
        assert reader.names() == {1: "call"}


def test_only_a_half_written_record_is_lost() -> None:
    with _ring(64) as (writer, reader, fd):
        _write(writer, 20)
        at = trace.ring_size(0) + 7 * trace.RECORD.size + trace.RECORD.offset("end")
        os.pwrite(fd, bytes(4), at)  # record 7 was begun, and its thread ended there
        assert reader.read()["first"].tolist() == list(range(6))
        assert reader.lost == 0
        assert reader.read(final=True)["first"].tolist() == list(range(7, 20))
        assert reader.lost == 1


def test_a_large_ring_is_copied_once_while_its_writer_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    with _ring(trace.MAX_RECORDS) as (writer, reader, _):
        _write(writer, 5000)
        read_part, copied = reader._read_part, 0

        def read_and_write(at: int, count: int) -> Records:
            nonlocal copied
            copied += count
            part = read_part(at, count)
            if copied < trace.MAX_RECORDS:
                _write(writer, 3)
            return part

        monkeypatch.setattr(reader, "_read_part", read_and_write)
        assert len(reader.read()) > 5000
        assert copied < trace.MAX_RECORDS + 10 * 64


def test_a_hostile_ring_is_read_but_not_trusted() -> None:
    dice = random.Random(4)
    for _ in range(40):
        with _ring(64) as (writer, reader, fd):
            _write(writer, 30)
            for _ in range(60):
                at = trace.ring_size(0) + dice.randrange(64) * 64 + dice.randrange(64)
                os.pwrite(fd, dice.randbytes(dice.randint(1, 8)), at)
            os.pwrite(fd, dice.randbytes(trace.NAME_SIZE * 4), trace.NAME_SIZE)
            for final in (False, False, True):
                assert len(reader.read(final)) <= 64
            assert all(text.isprintable() for text in reader.names().values())


def test_impossible_records_are_dropped(shared_daemon: Daemon, tmp_path: Path) -> None:
    now = time.monotonic_ns()
    hour = 3600 * 10**9
    with (
        _monitor(shared_daemon) as driver,
        Driver.open(shared_daemon.socket) as session,
        collecting(driver) as collector,
    ):
        connection = session._connection
        connection._trace_seen = connection.trace  # joins by hand
        request = tracing.TraceJoin(trace=connection.trace)
        joined, (fd,) = connection.request("test", request, tracing.TraceJoined)
        writer = TraceWriter(fd, joined.records)
        os.close(fd)
        for kind, begun, duration in [
            (TraceKind.EXECUTE, now, 0),
            (TraceKind.TOTALS, now, 0),
            (TraceKind.EVENT, now, 0),
            (99, now, 0),
            (TraceKind.CALL, now + hour, 0),
            (TraceKind.CALL, max(0, now - hour), 0),
            (TraceKind.CALL, now, hour),
            (TraceKind.CALL, 2**64 - 1, 2**64 - 1),
        ]:
            writer.write(kind, 65535, begun, duration)
        writer.write(TraceKind.SUBMIT, 0, now, 0, 0, 1, 1, 2**64 - 1)
        writer.write(TraceKind.COMPLETE, 0, now, 0, 0, 1, 5)
        writer.write(TraceKind.CALL, 65535, now)
        recording = collector.finish()
    (ring,) = [ring for ring in recording.rings if ring.info.role == "client"]
    assert (len(ring.records), ring.invalid, ring.lost) == (3, 8, 0)
    found: Timeline = timeline_of(recording)
    chrome.write(tmp_path / "x.json", found, recording)
    assert ChromeTrace(tmp_path / "x.json").names("call") == {"name 65535": 1}
