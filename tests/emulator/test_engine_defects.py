"""Defects of the engine's own code: one ends only the submission or image that triggers it."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.driver import Context, Graph, GraphSource, ZeResult
from softnpu.driver.graph_creation import compile_source
from softnpu.emulator.common import linux
from softnpu.emulator.engine import images
from softnpu.emulator.engine.images import EngineImage, ImageLoader
from softnpu.emulator.engine.queues.queue import Place
from softnpu.emulator.engine.running.runner import Runner
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.links import engine as link
from softnpu.emulator.links import internal_errors
from softnpu.emulator.links.internal_errors import InternalErrors
from softnpu.emulator.openvino.modelled_time import host_times
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import OpenContext, StartContext, StartDaemon, StartPython
from tests.support.daemon import Daemon
from tests.support.fast_path import DATA, Rig, Session
from tests.support.models import image, on_cpu
from tests.support.waiting import wait_until
from tests.support.wire import NOTHING, OpenWire, WireContext, WireQueue
from tests.support.work import LONG, Loaded, check_works, execute, failure, fill, recorded, run, same

_ENGINE = "/emulator/engine/"
_UNKNOWN = int(ZeResult.ERROR_UNKNOWN)


# ------------------------------------------------------------ at every line


class _Defect(Exception):
    """An unexpected error."""


class _At:
    """Raises at the line of the engine's code that is reached as number `line`; `where` it was.

    Lines of `boundary` do not count.
    """

    def __init__(self, line: int, boundary: CodeType) -> None:
        self._left = line
        self._boundary = boundary
        self.where = ""

    def __enter__(self) -> _At:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _value: Any) -> Callable[..., Any] | None:
        ours = _ENGINE in frame.f_code.co_filename and frame.f_code is not self._boundary
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, _value: Any) -> Callable[..., Any] | None:
        if event == "line" and not self.where:
            self._left -= 1
            if not self._left:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise _Defect(self.where)
        return self._line


class _Worked(Rig):
    """A rig whose runner ends submissions on exceptions, and reports them."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[link.Report] = []
        endings = self.runner._endings
        endings._errors, endings._send = InternalErrors("engine"), self.reports.append

    def run(self, session: Session) -> None:
        self.runner.run(session.queue)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Worked]:
    monkeypatch.setattr(internal_errors.log, "disabled", True)  # its records would keep frames and memory
    rig = _Worked()
    yield rig
    rig.close()


_FILLED = cmd.Fill(MemoryAt(DATA, 0), 64, b"\7")
_COPIED = cmd.Copy(MemoryAt(DATA, 64), MemoryAt(DATA, 0), 64)


@pytest.mark.parametrize("cached", [False, True])
def test_whatever_line_of_a_submission_raises_it_ends_once_and_truly(rig: _Worked, cached: bool) -> None:
    session = rig.session()
    data = session.context.space.memory(DATA).array
    session.record(_FILLED, _COPIED)
    line, seen = 0, set()
    while True:
        line += 1
        if cached:
            session.submit()
            rig.run(session)
        data[:128] = 0
        rig.reports.clear()
        ticket = session.submit()
        with _At(line, Runner.run.__code__) as defect:
            rig.run(session)
        sequence = session._tail
        result, done = session.ring.result(sequence), bool((data[:128] == 7).all())
        assert session.queue.completed == session.ring.completed == sequence, defect.where
        assert session.queue.place is Place.AWAKE, defect.where
        assert list(rig.queues.awake) == [session.queue], defect.where
        assert not session.queue.has_begun, defect.where
        if session.ring.is_lost:  # not even its slot was readable
            assert result == int(ZeResult.ERROR_DEVICE_LOST), defect.where
            rig.queues.drop(session.queue)
            session = rig.session()
            data = session.context.space.memory(DATA).array
            session.record(_FILLED, _COPIED)
            continue
        assert result in (0, _UNKNOWN), defect.where
        assert done or result, f"{defect.where}: SUCCESS of work that was not done"
        assert session.fence.is_signalled(ticket), f"{defect.where}: a waiter is not told"
        assert session.fence.result == result, defect.where
        if not defect.where:
            break
        seen.add(defect.where)
        assert [type(report) for report in rig.reports].count(link.InternalError) == 1, defect.where
        session.submit()
        rig.run(session)
        assert session.ring.result(session._tail) == 0, f"after {defect.where}"
    assert len(seen) > 60


class _Kept(NamedTuple):
    """What loading has made, as far as the loader looks at it."""

    meta: Any = SimpleNamespace(name="kept")
    key: str = ""
    lacking: str = ""
    weights: None = None


def test_whatever_line_of_a_load_raises_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_errors.log, "disabled", True)
    monkeypatch.setattr(images, "load_device", lambda: None)
    monkeypatch.setattr(images, "timed_load", lambda *_: (_Kept(), 1.0))
    reports: list[Any] = []
    loader = ImageLoader(reports.append, lambda: None, host_times, False, None, InternalErrors("engine"))
    seen, unclosed = set(), []
    for line in itertools.count(1):
        image = loader._images[line] = EngineImage(line, memoryview(bytearray(16)).cast("Q"))
        fd = linux.sealed_copy("blob", b"blob")
        reports.clear()
        with _At(line, ImageLoader._answer.__code__) as defect:
            loader._answer(image, link.ImageLoad(image=line, state=0, blob_length=1), [fd])
        (answer,) = (report for report in reports if isinstance(report, link.ImageLoaded))
        assert answer.info == image.info, defect.where
        assert image.info or image.loaded, f"{defect.where}: SUCCESS of what was not loaded"
        assert os.eventfd_read(loader.loaded_fd), f"{defect.where}: commands that wait are not told"
        with contextlib.suppress(OSError):
            os.close(fd)
            unclosed.append(defect.where)
        if not defect.where:
            break
        seen.add(defect.where)
    for each in (loader.loaded_fd, loader.changes.fd):  # its thread never ends
        os.close(each)
    assert len(seen) > 5
    assert len(unclosed) <= 2, f"{unclosed}: more than the lines around those that close them"


def test_an_image_whose_weights_changed_while_it_was_loaded_is_verified_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(images, "load_device", lambda: None)
    reports: list[Any] = []
    loader = ImageLoader(reports.append, lambda: None, host_times, False, None, InternalErrors("engine"))
    image = loader._images[1] = EngineImage(1, memoryview(bytearray(16)).cast("Q"))

    def changed(*_: object) -> tuple[_Kept, float]:
        loader.evict(1, reports.append)  # as the engine does when it reads that a file was written to
        return _Kept(), 1.0

    monkeypatch.setattr(images, "timed_load", changed)
    loader._answer(image, link.ImageLoad(image=1, state=0, blob_length=1), [])
    assert not image.is_ready()
    assert reports[-1] == link.ImageNeeded(image=1), "it is asked for, and compared with its digests then"
    monkeypatch.setattr(images, "timed_load", lambda *_: (_Kept(), 1.0))
    loader._answer(image, link.ImageLoad(image=1, state=0, blob_length=1), [])
    assert image.is_ready()
    for fd in (loader.loaded_fd, loader.changes.fd):  # its thread never ends
        os.close(fd)


# ------------------------------------------------------------ in a real engine

_BEFORE = ["engine.submit", "engine.running", "engine.completing"]


@pytest.mark.parametrize("point", _BEFORE)
def test_a_defect_ends_one_submission(
    start_context: StartContext, open_context: OpenContext, point: str
) -> None:
    daemon, context = start_context(failpoints=f"{point}=error:2")
    daemon.tracebacks_expected = True
    memory, queue = context.alloc_host(64), context.create_command_queue()
    numbers = set()
    for _ in range(2):
        error = failure(
            lambda: execute(queue, fill(context, memory, 7)).host_synchronize(LONG), ZeResult.ERROR_UNKNOWN
        )
        assert "internal error" in error.info.found
        assert "report" in error.info.hint
        numbers.add(error.info.found)
    assert len(numbers) == 1, "errors of one kind have the number that is in the log"
    run(queue, fill(context, memory, 8))
    assert not queue.lost
    assert bytes(memory.view()) == b"\10" * 64
    check_works(open_context(daemon))
    assert daemon.engine().restarts == 0
    assert daemon.log.count("Traceback") == 1
    wait_until(lambda: daemon.status().internal_errors == 2, what="they are counted")


@pytest.mark.parametrize("point", ["engine.ended", "engine.signal"])
def test_a_defect_behind_the_end_of_a_submission_changes_nothing(
    start_context: StartContext, point: str
) -> None:
    daemon, context = start_context(failpoints=f"{point}=error")
    daemon.tracebacks_expected = True
    memory, queue = context.alloc_host(64), context.create_command_queue()
    assert execute(queue, fill(context, memory, 7)).host_synchronize(LONG)
    assert bytes(memory.view()) == b"\7" * 64
    run(queue, fill(context, memory, 8))
    assert daemon.engine().restarts == 0
    assert "internal error" in daemon.log


def test_a_defect_ends_one_load(start_context: StartContext, digits: Path) -> None:
    daemon, context = start_context(failpoints="engine.load=error")
    daemon.tracebacks_expected = True
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source)
    error = failure(graph.initialize, ZeResult.ERROR_UNKNOWN)
    assert "internal error" in error.info.found
    loaded = Loaded(context, digits)
    assert same(loaded.infer(context.create_command_queue(), image()), on_cpu(digits, image()))
    assert daemon.engine().restarts == 0
    assert daemon.log.count("Traceback") == 1


def test_an_engine_that_cannot_handle_a_message_is_replaced(start_context: StartContext) -> None:
    daemon, context = start_context(failpoints="engine.free=error")
    daemon.tracebacks_expected = True
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    context.alloc_host(64).destroy()
    daemon.wait_restarted(1)
    run(queue, fill(context, memory, 7))
    assert bytes(memory.view()) == b"\7" * 64
    assert "cannot handle a message" in daemon.log


# ------------------------------------------------------------ client-written memory


def test_a_tail_that_is_taken_back_from_a_submission_that_runs(
    shared_daemon: Daemon, wire_context: WireContext
) -> None:
    def queue(turbo: bool) -> WireQueue:
        request = msg.QueueCreate(context=wire_context.handle, slots=16, turbo=turbo)
        return WireQueue(wire_context, 16, wire_context.wire.ask(request, msg.QueueCreated))

    restarts = shared_daemon.engine().restarts
    busy, one = [queue(True) for _ in range(9)], queue(False)
    control, gate = wire_context.alloc(4096, "control"), wire_context.alloc(4096, "control")
    data = wire_context.alloc(64 << 20)
    gate.write(bytes(64))
    control.write(NOTHING)
    for each in busy:  # enough for the engine to check which ones it can put to sleep
        each.wait(each.submit(control, len(NOTHING)))
    steps: list[cmd.Command] = [cmd.Fill(MemoryAt(data.handle, 0), data.size, b"\1\2\3\4")] * 4
    steps.append(cmd.EventWait(MemoryAt(gate.handle, 0)))
    commands = cmd.encode_buffer([cmd.encode_command(each) for each in steps])
    long = wire_context.alloc(4096, "control")
    long.write(commands)
    number = one.submit(long, len(commands))
    wait_until(lambda: data.read(1) == b"\1", what="it runs")
    one.ring.write(struct.pack("=Q", number - 1), records.RING_TAIL)
    time.sleep(0.5)  # time for it to reach its wait
    one.ring.write(struct.pack("=Q", number), records.RING_TAIL)
    gate.event().host_signal()
    one.set_tail(number)
    assert one.wait(number) == 0
    wire_context.check_works()
    assert shared_daemon.engine().restarts == restarts


def test_a_tail_of_any_size_loses_the_queue_and_nothing_else(
    shared_daemon: Daemon, open_wire: OpenWire, wire_context: WireContext
) -> None:
    restarts = shared_daemon.engine().restarts
    for tails in ((2**64 - 1,) * 2, (2**64 - 1, 5, 2**64 - 1), (2**63, 2**63 - 1, 0), (2**41, 2**41 + 1)):
        queue = wire_context.queue()
        for tail in tails:
            queue.set_tail(tail)
            wait_until(lambda queue=queue, tail=tail: queue.completed == tail, what=f"tail {tail}")  # type: ignore[misc]
        assert queue.lost
    wire_context.check_works()
    WireContext(open_wire(shared_daemon)).check_works()
    assert shared_daemon.engine().restarts == restarts


# ------------------------------------------------------------ strides


def _strided(context: Context, private_dir: Path, model: ov.Model) -> Graph:
    path = private_dir / "strided.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    with GraphSource.from_ir(path) as source:
        graph = compile_source(context, source, config={"NPU_ENABLE_STRIDES_FOR": "x"})
    graph.initialize()
    return graph


@pytest.mark.parametrize("kind", ["u4", "i4", "u2", "nf4"])
def test_strides_of_elements_of_less_than_a_byte(
    shared_daemon: Daemon, open_context: OpenContext, private_dir: Path, kind: str
) -> None:
    context = open_context(shared_daemon)
    restarts = shared_daemon.engine().restarts
    x = ops.parameter([4, 8], getattr(ov.Type, kind), name="x")
    graph = _strided(context, private_dir, _named(ov.Model([ops.result(ops.convert(x, "f32"))], [x], "m")))
    given, result = context.alloc_host(4096), context.alloc_host(4096)
    given.view()[:] = np.arange(4096) % 251
    queue = context.create_command_queue()
    graph.set_argument_value(1, result)

    def execution() -> Any:
        return recorded(context, lambda commands: commands.append_graph_execute(graph))

    graph.set_argument_value(0, given)
    run(queue, execution())
    dense = result.view(np.float32)[:32].copy()
    result.view()[:] = 0
    graph.set_argument_value2(0, given, [1, 8])
    run(queue, execution())
    assert np.array_equal(result.view(np.float32)[:32], dense)
    graph.set_argument_value2(0, given, [1, 16])
    error = failure(
        lambda: execute(queue, execution()).host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT
    )
    assert "'x'" in error.info.object
    assert shared_daemon.engine().restarts == restarts


def test_strides_of_an_argument_without_elements(
    shared_daemon: Daemon, open_context: OpenContext, private_dir: Path
) -> None:
    context = open_context(shared_daemon)
    restarts = shared_daemon.engine().restarts
    x, y = ops.parameter([0, 4], np.float32, name="x"), ops.parameter([2, 4], np.float32, name="y")
    graph = _strided(context, private_dir, _named(ov.Model([ops.result(ops.concat([x, y], 0))], [x, y], "m")))
    memory = [context.alloc_host(4096) for _ in range(3)]
    memory[1].view(np.float32)[:8] = range(8)
    for strides in ([1, 4], [1, 1 << 30], [64, 1]):
        memory[2].view()[:] = 0
        graph.set_argument_value2(0, memory[0], strides)
        graph.set_argument_value(1, memory[1])
        graph.set_argument_value(2, memory[2])
        run(context.create_command_queue(), recorded(context, lambda c: c.append_graph_execute(graph)))
        assert memory[2].view(np.float32)[:8].tolist() == list(range(8))
    assert shared_daemon.engine().restarts == restarts


def _named(model: ov.Model) -> ov.Model:
    for port in model.inputs:
        port.set_names({port.get_node().friendly_name})
    return model


# ------------------------------------------------------------ endless work, and overcounting


def _endless(folder: Path) -> Path:
    """Write a model of one Loop whose iteration count is an input."""
    x, trips = ops.parameter([1, 4], np.float32, name="x"), ops.parameter([], np.int32, name="trips")
    given = ops.parameter([1, 4], np.float32)
    result = ops.add(ops.multiply(given, np.float32(0.999)), np.float32(1e-3))
    body = ov.Model([ops.result(result), ops.result(ops.constant(np.array(True)))], [given], "body")
    loop = ops.loop(trips, ops.constant(np.array(True)))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(given, x.output(0), result.output(0))
    last = loop.get_iter_value(result.output(0), -1)
    path = folder / "endless.xml"
    ov.save_model(_named(ov.Model([ops.result(last)], [x, trips], "endless")), path, compress_to_fp16=False)
    return path


def test_an_inference_that_does_not_end_when_it_is_cancelled_costs_others_a_reset(
    start_context: StartContext, open_context: OpenContext, private_dir: Path
) -> None:
    daemon, context = start_context()
    loaded, queue = Loaded(context, _endless(private_dir)), context.create_command_queue()
    loaded.memory[1].view(np.int32)[0] = 2_000_000_000
    fence = execute(queue, loaded.commands)
    assert not fence.host_synchronize(1_000_000_000)
    other = open_context(daemon)
    waiting = execute(other.create_command_queue(), fill(other, other.alloc_host(64), 1))
    fence.cancel()
    assert waiting.host_synchronize(LONG)
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    assert daemon.engine().restarts == 1
    assert "does not end" in daemon.log


_DIES_INSIDE = """
import os
from softnpu.plugin import Core
request = Core().compile_model(given["path"], "NPU").create_infer_request()
inputs = [np.zeros((1, 4), np.float32), np.array(1, np.int32)]
for _ in range(30):  # so short that the engine computes it without a look at anything else
    request.infer(inputs)
inputs[1][...] = 2_000_000_000
request.start_async(inputs)
say(os.getpid())
hear()
"""


@pytest.mark.parametrize(
    ("limit_s", "let_go_s", "reason"),
    [(0.0, 2.0, "given back did not end"), (2.0, 1e9, "more than 2 s"), (0.0, 1e9, "given back did not end")],
    ids=["of what was given back", "of one command", "of what others wait for"],
)
def test_what_a_dead_client_has_left_has_its_limit(
    start_daemon: StartDaemon,
    open_context: OpenContext,
    start_python: StartPython,
    private_dir: Path,
    limit_s: float,
    let_go_s: float,
    reason: str,
) -> None:
    daemon = start_daemon(command_limit_s=limit_s, tuning=Tuning(let_go_s=let_go_s))
    environment = {"SOFTNPU_SOCKET": str(daemon.socket)}
    client = start_python(_DIES_INSIDE, environment=environment, path=str(_endless(private_dir)))
    client.hear()
    wait_until(lambda: daemon.engine().running == 1, what="the inference that does not end")
    client.kill()
    wait_until(lambda: daemon.engine().contexts == 0, what="the end of its context")
    other = open_context(daemon)
    waiting = execute(other.create_command_queue(), fill(other, other.alloc_host(64), 1))
    assert waiting.host_synchronize(LONG)
    assert daemon.counts("restarts", "offences") == (1, 1)
    assert reason in daemon.log


def test_bytes_of_open_shapes_are_at_most_those_of_the_memory(
    shared_daemon: Daemon, open_context: OpenContext, private_dir: Path
) -> None:
    side = ov.Dimension(1, 1 << 19)
    xs = [ops.parameter(ov.PartialShape([side, side]), np.float32, name=f"x{i}") for i in range(4)]
    model = ov.Model([ops.result(ops.reduce_sum(xs[0], ops.constant(np.array([0, 1])), True))], xs, "m")
    path = private_dir / "open.xml"
    ov.save_model(_named(model), path, compress_to_fp16=False)
    context = open_context(shared_daemon)
    with GraphSource.from_ir(path) as source:
        graph = compile_source(context, source)
    graph.initialize()
    for index, argument in enumerate(graph.meta.arguments):
        memory = context.alloc_host(4096)
        if argument.shape_of >= 0:
            memory.view(np.int32)[:2] = 1
        graph.set_argument_value(index, memory)
    before = shared_daemon.engine().read_bytes
    run(context.create_command_queue(), recorded(context, lambda c: c.append_graph_execute(graph)))
    assert 0 < shared_daemon.engine().read_bytes - before <= 4096 * len(graph.meta.arguments)
