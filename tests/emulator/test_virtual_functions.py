"""Virtual functions: each user of a device has an engine that never maps other users' memory."""

from __future__ import annotations

import mmap
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Context, Driver, GraphSource, ZeError, ZeResult, faults
from softnpu.emulator.interface import endpoint, records
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.environment import ENV_SOCKET
from softnpu.emulator.interface.messages import FunctionStatus
from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.emulator.supervisor.settings import Isolation
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import OpenContext, StartDaemon
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon
from tests.support.models import image, on_cpu, write_chain
from tests.support.other_users import GUEST, STRANGER, AsUser, needs_root, public_place
from tests.support.waiting import wait_gone, wait_until
from tests.support.wire import OpenWire, WireContext
from tests.support.work import check_works

_KEPT = Tuning(function_idle_s=3600.0, compiler_idle_s=3600.0, compilers=2)
_SECRET = b"the secret of one user, in its own device memory: 4711"
_GUEST = """
driver = Driver.open(place)
context = driver.devices[0].create_context()
def serve(command):
    if command == "infer":
        return infer(context)
    if command == "keep a secret":
        memory = context.alloc_host(4096)
        secret = np.frombuffer(given["secret"].encode(), np.uint8)
        memory.view(np.uint8, (4096,))[: len(secret)] = secret
        kept.append(memory)
        commands = recorded(context, lambda c: c.append_barrier())
        queue = context.create_command_queue()
        queue.execute_command_lists([commands])
        assert queue.synchronize(60 * 10**9)
        kept.append(queue)
        return True
    if command == "status":
        return [function.uid for function in driver.status().engines[0].functions]
while True:
    say(outcome(lambda: serve(hear())))
"""


class _Guest:
    """Another user's process with a context, which obeys commands."""

    def __init__(self, process: ClientProcess) -> None:
        self._process = process

    def do(self, command: str) -> object:
        self._process.tell(command)
        answer = self._process.hear(60.0)
        assert "value" in answer, answer
        return answer["value"]

    def kill(self) -> None:
        self._process.kill()


@pytest.fixture
def shared(start_daemon: StartDaemon, public_dir: Path) -> Daemon:
    """Return a daemon that admits two users and keeps their functions. Its engines are not forks."""
    place = public_place(public_dir, users=(GUEST, STRANGER))
    return start_daemon(interpreter=True, socket=str(place), allow_users=(GUEST, STRANGER), tuning=_KEPT)


@pytest.fixture
def mine(shared: Daemon, open_context: OpenContext) -> Context:
    """Return a context of the daemon's owner."""
    return open_context(shared)


def function_of(daemon: Daemon, uid: int, device: int = 0) -> FunctionStatus:
    functions = {each.uid: each for each in daemon.engine(device).functions}
    return functions[uid]


def infer(context: Context, model: Path) -> bytes:
    """Return the output of the digits model, as bytes."""
    with GraphSource.from_ir(model) as source, context.create_graph(source) as graph:
        graph.initialize()
        places = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
        for index, place in enumerate(places):
            graph.set_argument_value(index, place)
        places[0].view(np.float32, (1, 1, 8, 8))[:] = image()
        commands = context.create_command_list()
        commands.append_graph_execute(graph)
        commands.close()
        queue = context.create_command_queue()
        queue.execute_command_lists([commands])
        assert queue.synchronize(60 * 10**9)
        return bytes(places[1].view(np.float32))


def memory_files(pid: int) -> set[str]:
    """Return the memory files that a process maps or has open, by inode and name."""
    places = [*Path(f"/proc/{pid}/map_files").iterdir(), *Path(f"/proc/{pid}/fd").iterdir()]
    links = {place: str(place.readlink()) for place in places}
    return {f"{place.stat().st_ino} {link}" for place, link in links.items() if "/memfd:" in link}


def has_in_memory(pid: int, content: bytes) -> bool:
    """Return whether a process can read these bytes anywhere."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if found is None or "[v" in line:
                continue
            start, end = (int(each, 16) for each in found.groups())
            while start < end:
                try:
                    memory.seek(start)
                    part = memory.read(min(end - start, 64 << 20))
                except OSError:
                    break
                if content in part:
                    return True
                start += max(len(part), 1)
    return False


@needs_root
def test_an_engine_has_nothing_of_another_user(
    shared: Daemon, mine: Context, as_user: AsUser, digits: Path
) -> None:
    """The same model, and a secret: one engine has it, the others have no page of its user."""
    guest = _Guest(as_user(_GUEST, shared, xml=str(digits), secret=_SECRET.decode()))
    other = _Guest(as_user(_GUEST, shared, STRANGER, xml=str(digits)))
    expected = on_cpu(digits, image())[0].tobytes()
    assert infer(mine, digits) == expected
    for each in (guest, other):
        assert np.array(each.do("infer"), np.float32).tobytes() == expected
    assert guest.do("keep a secret")
    functions = sorted(shared.engine().functions, key=lambda each: each.uid)
    assert [(each.uid, each.contexts, each.inferences) for each in functions] == [
        (0, 1, 1),
        (STRANGER, 1, 1),
        (GUEST, 1, 1),
    ]
    engines = [each.engine_pid for each in functions]
    files = [memory_files(pid) for pid in engines]
    assert all(files)
    assert not files[0] & files[1]
    assert not files[0] & files[2]
    assert not files[1] & files[2]
    assert [has_in_memory(pid, _SECRET) for pid in engines] == [False, False, True]
    assert shared.engine().inferences == 3
    # users see only themselves
    assert guest.do("status") == [GUEST]


@needs_root
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_ends_or_hangs_is_that_of_one_user(
    shared: Daemon, mine: Context, as_user: AsUser, digits: Path, how: signal.Signals
) -> None:
    guest = _Guest(as_user(_GUEST, shared, xml=str(digits)))
    before = guest.do("infer")
    primary, theirs = shared.engine().engine_pid, function_of(shared, GUEST).engine_pid
    os.kill(theirs, how)
    check_works(mine)
    assert guest.do("infer") == before
    wait_until(lambda: function_of(shared, GUEST).restarts == 1, what="a reset of one function")
    assert function_of(shared, GUEST).engine_pid not in (theirs, 0)
    check_works(mine)
    assert shared.engine().engine_pid == primary
    assert function_of(shared, 0).restarts == 0
    assert shared.engine().restarts == 1


@needs_root
def test_a_function_ends_when_nobody_uses_it_and_its_counters_stay(
    start_daemon: StartDaemon, public_dir: Path, as_user: AsUser, digits: Path
) -> None:
    place = public_place(public_dir, users=(GUEST,))
    daemon = start_daemon(socket=str(place), allow_users=(GUEST,), tuning=Tuning(function_idle_s=0.3))
    descriptors = daemon.base_fd_count()
    guest = _Guest(as_user(_GUEST, daemon, xml=str(digits)))
    guest.do("infer")
    theirs = function_of(daemon, GUEST).engine_pid
    counted = daemon.counts("submissions", "inferences", "busy_ns", "read_bytes")
    assert counted[:2] == (1, 1)
    guest.kill()
    wait_gone(theirs)
    wait_until(lambda: [each.uid for each in daemon.engine().functions] == [0], what="one function")
    assert daemon.counts("submissions", "inferences", "busy_ns", "read_bytes") == counted
    assert daemon.counts("contexts", "memory_used", "restarts") == (0, 0, 0)
    wait_until(lambda: daemon.base_fd_count() == descriptors, what="the descriptors of the function")
    # the page agrees, in its second half
    record = endpoint.read_record(daemon.socket)
    assert record is not None
    with open(record.status, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as page:
        words = memoryview(page).cast("Q")
        at = records.status_offset(0) // 8 + StatusWord.INFERENCES
        both = words[at], words[at + records.others_offset(1) // 8]
        words.release()
    assert both == (0, 1)
    # and it is restored
    again = _Guest(as_user(_GUEST, daemon, xml=str(digits)))
    again.do("infer")
    assert daemon.counts("inferences") == (2,)


def test_every_session_has_an_engine_if_asked(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(
        interpreter=True,  # its engines are programs, not forks of their parent
        isolate=Isolation.SESSION,
        limits=ResourceLimits(user_functions=2),
        tuning=Tuning(function_idle_s=0.3),
    )
    assert daemon.counts("engine_pid", "state") == (0, "ready")
    with Driver.open(daemon.socket) as one, Driver.open(daemon.socket) as two:
        contexts = [driver.devices[0].create_context() for driver in (one, one, two)]
        for context in contexts:
            check_works(context)
        functions = daemon.engine().functions
        assert [each.contexts for each in functions] == [2, 1]
        assert len({each.session for each in functions}) == len({each.engine_pid for each in functions}) == 2
        files = [memory_files(each.engine_pid) for each in functions]
        assert not files[0] & files[1]
        with Driver.open(daemon.socket) as three, pytest.raises(ZeError) as caught:
            three.devices[0].create_context()
        assert caught.value.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
        assert "--limit user-functions" in str(caught.value)
    for each in functions:
        wait_gone(each.engine_pid)
    assert not daemon.engine().functions
    with Driver.open(daemon.socket) as driver:
        check_works(driver.devices[0].create_context())


@needs_root
def test_an_injected_fault_reaches_whom_it_concerns(
    shared: Daemon, mine: Context, as_user: AsUser, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_SOCKET, str(shared.socket))
    guest = _Guest(as_user(_GUEST, shared, xml=str(digits)))
    guest.do("infer")
    (session,) = [each.session for each in shared.status().sessions if each.uid == GUEST]
    number = faults.inject("fail", session=session, count=1)
    check_works(mine)
    with pytest.raises(AssertionError, match="injected fault"):
        guest.do("infer")
    guest.do("infer")
    (state,) = [each for each in faults.status() if each.id == number]
    assert (state.state, state.hits) == ("used up", 1)
    # a global one counts per function: a user exhausts only their own
    faults.inject("fail", count=1)
    with pytest.raises(AssertionError, match="injected fault"):
        guest.do("infer")
    guest.do("infer")
    with pytest.raises(ZeError, match="injected fault"):
        check_works(mine)
    check_works(mine)


@needs_root
def test_a_worker_that_has_compiled_for_one_user_never_compiles_for_another(
    shared: Daemon, mine: Context, as_user: AsUser, digits: Path
) -> None:
    infer(mine, digits)
    (own,) = shared.status().compiler_pids
    guest = _Guest(as_user(_GUEST, shared, xml=str(digits)))
    guest.do("infer")
    theirs = set(shared.status().compiler_pids) - {own}
    assert len(theirs) == 1
    infer(mine, digits)
    assert set(shared.status().compiler_pids) == {own, *theirs}
    # both wait for their users' work: one ends for a third
    stranger = _Guest(as_user(_GUEST, shared, STRANGER, xml=str(digits)))
    stranger.do("infer")
    pids = set(shared.status().compiler_pids)
    assert len(pids) == 2
    assert len(pids - {own, *theirs}) == 1


@needs_root
def test_a_user_with_jobs_in_all_workers_keeps_nobody_waiting(
    start_daemon: StartDaemon, public_dir: Path, as_user: AsUser, open_wire: OpenWire, digits: Path
) -> None:
    place = public_place(public_dir, users=(GUEST,))
    tuning = Tuning(compilers=1, compiler_stall_s=3600.0)
    daemon = start_daemon(socket=str(place), allow_users=(GUEST,), tuning=tuning)
    wire = open_wire(daemon)
    with GraphSource.from_ir(write_chain(public_dir, 4, 2000)) as source:
        request = msg.GraphCreate(
            context=WireContext(wire).handle,
            name=source.name,
            xml_length=source.xml_length,
            weights=source.sources,
        )
        wire.send(request, source.fds)
    (busy,) = wait_until(lambda: daemon.status().compiler_pids, what="a worker at work")
    os.kill(busy, signal.SIGSTOP)
    guest = _Guest(as_user(_GUEST, daemon, xml=str(digits)))
    guest.do("infer")
    assert busy in daemon.status().compiler_pids
