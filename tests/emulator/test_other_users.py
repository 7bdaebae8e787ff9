"""Processes of other users: refused unless the owner of the daemon allows them; then they may only use it.

The second user is real: a child process that gives its rights away before it speaks to the daemon.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator import access
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.emulator.supervisor.users import Peer, Users
from tests.conftest import StartDaemon, StartPython
from tests.support.cli import softnpu
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon, DaemonRefused
from tests.support.models import on_cpu
from tests.support.waiting import wait_until
from tests.support.wire import Wire, WireContext
from tests.support.work import check_works

GUEST, STRANGER, GROUP = 65533, 65532, 65531
MIB = 1 << 20
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")

_BECOME = """
# what is imported later may lie where this user cannot read
import numpy.random, socket
import softnpu.driver.graph_creation, softnpu.driver.graph_source, softnpu.driver.launch
from softnpu.emulator.interface import messages as msg, places
from softnpu.emulator.interface.channel import Channel

def become(uid, groups):
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.die_with_parent(int(sys.argv[1]))

def outcome(call):
    try:
        return {"value": call()}
    except ZeError as error:
        return {"error": error.result.name, "text": str(error)}
    except OSError as error:
        return {"error": type(error).__name__, "text": str(error)}

kept = []  # what nobody refers to any more is given back

def infer(context):
    # sources are opened before: this user may not read the files of another
    graph = context.create_graph(source)
    graph.initialize()
    memory = [context.alloc_host(a.byte_size) for a in graph.meta.arguments]
    image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
    memory[0].view(np.float32, (1, 1, 8, 8))[:] = image
    for index, place in enumerate(memory):
        graph.set_argument_value(index, place)
    commands = context.create_command_list()
    commands.append_graph_execute(graph)
    commands.close()
    queue = context.create_command_queue()
    queue.execute_command_lists([commands])
    assert queue.synchronize(60 * 10**9)
    kept.append((graph, memory, commands, queue))
    return memory[1].view(np.float32).tolist()

place = Path(given["socket"])
source = GraphSource.from_ir(Path(given["xml"])) if "xml" in given else None
become(given["uid"], given.get("groups", []))
"""


def _as_user(start_python: StartPython, code: str, daemon: Daemon, uid: int, **given: Any) -> ClientProcess:
    return start_python(_BECOME + dedent(code), socket=str(daemon.socket), uid=uid, **given)


@pytest.fixture
def public_dir(private_dir: Path) -> Path:
    """A directory that everybody may pass through, as /run is."""
    private_dir.chmod(0o711)
    return private_dir


@pytest.fixture
def shared(start_daemon: StartDaemon, public_dir: Path) -> Daemon:
    """A daemon that lets the guest in."""
    place = _place(public_dir, users=(GUEST,))
    return start_daemon(socket=str(place), allow_users=(GUEST,), memory=64 * MIB)


def _place(folder: Path, users: tuple[int, ...] = (), groups: tuple[int, ...] = ()) -> Path:
    """A socket in a directory of its own, made here because the log of a test's daemon is in it as well."""
    place = folder / "shared" / "npu.sock"
    access.make_folder(place, users, groups)
    return place


@pytest.fixture
def open_daemon(start_daemon: StartDaemon, public_dir: Path) -> Iterator[Daemon]:
    """A daemon that lets nobody in, whose socket somebody has opened to all by hand."""
    daemon = start_daemon()
    assert daemon.socket.parent == public_dir
    daemon.socket.chmod(0o666)
    yield daemon
    assert daemon.alive


# ---------------------------------------------------------------- who may connect


def test_the_socket_is_its_owners_alone(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    for path in (daemon.socket, daemon.socket.with_name(daemon.socket.name + ".lock")):
        info = path.stat()
        assert stat.S_IMODE(info.st_mode) == 0o600
        assert info.st_uid == os.getuid()


@needs_root
def test_a_stranger_is_refused_by_name_of_user_and_option(
    open_daemon: Daemon, start_python: StartPython
) -> None:
    client = _as_user(start_python, "say(outcome(lambda: Driver.open(place)))", open_daemon, STRANGER)
    refused = client.hear()
    assert refused["error"] == "ERROR_INSUFFICIENT_PERMISSIONS", refused
    for word in (f"user {STRANGER}", f"--allow-user {STRANGER}", f"user {os.getuid()}"):
        assert word in refused["text"]
    with Driver.open(open_daemon.socket) as driver:
        check_works(driver.devices[0].create_context())
    assert [user.uid for user in open_daemon.status().users] == [os.getuid()]


@needs_root
def test_an_allowed_user_infers_and_no_other_user_reaches_the_socket(
    shared: Daemon, start_python: StartPython, digits: Path
) -> None:
    code = "driver = Driver.open(place)\nsay(infer(driver.devices[0].create_context()))\nhear()"
    guest = _as_user(start_python, code, shared, GUEST, xml=str(digits))
    numbers = np.array(guest.hear(60.0), np.float32)
    image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
    assert numbers.tobytes() == on_cpu(digits, image)[0].tobytes()
    assert {user.uid: user.sessions for user in shared.status().users} == {0: 0, GUEST: 1}

    stranger = _as_user(
        start_python,
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        say([outcome(lambda: sock.connect(str(place))), outcome(lambda: os.listdir(place.parent))])
        """,
        shared,
        STRANGER,
    )
    connected, listed = stranger.hear()
    assert connected["error"] == listed["error"] == "PermissionError"
    guest.tell()
    guest.finish()


@needs_root
def test_a_member_of_an_allowed_group_is_let_in(
    start_daemon: StartDaemon, public_dir: Path, start_python: StartPython
) -> None:
    daemon = start_daemon(socket=str(_place(public_dir, groups=(GROUP,))), allow_groups=(GROUP,))
    code = "say(outcome(lambda: Driver.open(place).devices[0].create_context() and 'in'))"
    member = _as_user(start_python, code, daemon, GUEST, groups=[7, GROUP])
    assert member.hear() == {"value": "in"}
    other = _as_user(start_python, code, daemon, STRANGER, groups=[7])
    assert "error" in other.hear()


@needs_root
def test_a_place_that_an_allowed_user_cannot_come_to_is_refused(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    with pytest.raises(DaemonRefused) as caught:
        start_daemon(allow_users=(GUEST,))
    info = caught.value.info
    assert info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    assert str(private_dir) in info.object
    assert f"user {GUEST}" in info.found
    assert "--socket" in info.hint


@needs_root
def test_the_next_daemon_lets_in_whom_it_allows_and_not_whom_the_last_did(
    start_daemon: StartDaemon, public_dir: Path, start_python: StartPython
) -> None:
    place = str(_place(public_dir))
    start_daemon(socket=place, allow_users=(GUEST,)).stop()
    daemon = start_daemon(socket=place, allow_users=(STRANGER,))
    code = "say(outcome(lambda: Driver.open(place, autostart=False) and 'in'))"
    assert _as_user(start_python, code, daemon, STRANGER).hear() == {"value": "in"}
    assert "error" in _as_user(start_python, code, daemon, GUEST).hear()


def test_a_file_system_without_access_lists_is_refused(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    private_dir.chmod(0o711)
    monkeypatch.setattr(os, "setxattr", unsupported)
    with pytest.raises(Refused) as caught:
        access.make_folder(private_dir / "shared" / "npu.sock", (GUEST,), ())
    assert caught.value.info.result == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert not (private_dir / "shared").exists()


def test_owner_and_root_may_command_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    users = Users(ResourceLimits(), 1 << 30, (GUEST,), ())
    left, right = socket.socketpair()
    with left, right:
        for uid, commands in ((1000, True), (0, True), (GUEST, False)):
            assert users.admit(Peer(1, uid, uid), left).commands == commands
        with pytest.raises(Refused) as caught:
            users.admit(Peer(1, STRANGER, STRANGER), left)
        assert caught.value.info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    assert users.admit(Peer(1, GUEST, GUEST), left).memory.limit == (3 << 30) // 4


# ---------------------------------------------------------------- what a guest may do


@needs_root
def test_a_guest_cannot_stop_the_daemon_and_sees_only_itself(
    shared: Daemon, start_python: StartPython
) -> None:
    with Driver.open(shared.socket) as mine:
        mine.devices[0].create_context().alloc_host(MIB)
        guest = _as_user(
            start_python,
            """
            driver = Driver.open(place)
            context = driver.devices[0].create_context()
            state = driver.status()
            say([[s.uid for s in state.sessions], [u.uid for u in state.users], state.session_count])
            say(outcome(driver.stop_daemon))
            say(outcome(lambda: driver.status().server and context.alloc_host(64).size))
            """,
            shared,
            GUEST,
        )
        assert guest.hear() == [[GUEST], [GUEST], 1]
        refused = guest.hear()
        assert refused["error"] == "ERROR_INSUFFICIENT_PERMISSIONS"
        assert f"user {GUEST}" in refused["text"]
        assert guest.hear() == {"value": 64}, "its session goes on"
        state = shared.status()
        assert sorted(session.uid for session in state.sessions) in ([0], [0, GUEST])
        assert shared.alive


@needs_root
def test_a_guest_cannot_take_everything(shared: Daemon, start_python: StartPython) -> None:
    guest = _as_user(
        start_python,
        """
        drivers, refusals, taken = [Driver.open(place) for _ in range(4)], [], 0
        contexts = [driver.devices[0].create_context() for driver in drivers]
        for context in contexts:
            try:
                while True:
                    kept.append(context.alloc_host(8 << 20))
                    taken += 8 << 20
            except ZeError as error:
                refusals.append(str(error))
        say([taken, refusals])
        hear()
        """,
        shared,
        GUEST,
    )
    taken, refusals = guest.hear(60.0)
    assert taken == 48 * MIB, "three quarters of 64 MiB"
    assert all(f"user {GUEST}" in text and "--limit user-memory" in text for text in refusals)
    with Driver.open(shared.socket) as driver:
        context = driver.devices[0].create_context()
        check_works(context)
        kept = context.alloc_host(15 * MIB)
        guest.process.kill()
        wait_until(lambda: [user.uid for user in shared.status().users] == [0], what="the guest forgotten")
        wait_until(lambda: shared.memory_used() == context.query_memory()[1], what="its memory back")
        assert kept.size <= shared.memory_used() < kept.size + MIB


@needs_root
def test_a_guest_cannot_write_to_what_it_may_read(shared: Daemon, start_python: StartPython) -> None:
    guest = _as_user(
        start_python,
        """
        sock = places.new_socket()
        sock.connect(str(place))
        channel = Channel(sock)
        channel.send(1, msg.encode(msg.Hello(major=1, minor=0, client="guest")))
        packet = channel.receive()
        (page,) = packet.take_fds(1)
        welcome = msg.decode_answer(packet.body)
        say([
            os.pread(page, 8, 0).decode(),
            outcome(lambda: os.close(os.open(f"/proc/self/fd/{page}", os.O_RDWR))),
            outcome(lambda: os.write(page, b"x")),
            outcome(lambda: os.fchmod(page, 0o777)),
            outcome(lambda: os.listdir(f"/proc/{welcome.pid}/fd")),
        ])
        """,
        shared,
        GUEST,
    )
    magic, reopened, written, changed, listed = guest.hear()
    assert magic == "SNPUSTAT"
    for tried in (reopened, written, changed, listed):
        assert "error" in tried, "it may only read"


@needs_root
def test_the_cache_directory_of_a_guest_is_not_used(
    shared: Daemon, start_python: StartPython, digits: Path, public_dir: Path
) -> None:
    cache = public_dir / "cache"
    cache.mkdir(mode=0o700)
    guest = _as_user(
        start_python,
        """
        driver = Driver.open(place)
        say(len(infer(driver.devices[0].create_context())))
        """,
        shared,
        GUEST,
        xml=str(digits),
        cache=str(cache),
    )
    assert guest.hear(60.0)
    assert os.listdir(cache) == []
    with Wire(shared.socket) as wire:
        wire.hello()
        assert WireContext(wire).alloc(64).handle


@needs_root
def test_a_guest_that_is_killed_leaves_nothing(
    shared: Daemon, start_python: StartPython, digits: Path
) -> None:
    descriptors = shared.base_fd_count()
    guest = _as_user(
        start_python,
        "driver = Driver.open(place)\nsay(infer(driver.devices[0].create_context()))\nhear()",
        shared,
        GUEST,
        xml=str(digits),
    )
    assert guest.hear(60.0)
    assert shared.memory_used() > 0
    guest.process.kill()
    wait_until(lambda: shared.memory_used() == 0, what="its memory back")
    wait_until(lambda: shared.base_fd_count() <= descriptors, what="its descriptors closed")
    assert [user.uid for user in shared.status().users] == [0]


# ---------------------------------------------------------------- the command line


@needs_root
def test_the_command_line_lets_users_in_by_name_or_number(public_dir: Path) -> None:
    place = str(public_dir / "shared" / "npu.sock")
    try:
        softnpu("daemon", "--socket", place, "--allow-user", "nobody", "--allow-group", str(GROUP)).words  # noqa: B018
        listed = os.getxattr(place, "system.posix_acl_access")
        for number in (65534, GROUP):
            assert number.to_bytes(4, "little") in listed
        assert stat.S_IMODE(os.stat(place).st_mode) & 0o007 == 0
        assert '"users"' in softnpu("status", "--json", "--socket", place).words
    finally:
        softnpu("stop", "--socket", place)
    unknown = softnpu("daemon", "--socket", place, "--allow-user", "no-such-user").complaint
    assert "no-such-user" in unknown
    assert "--allow-user" in unknown


def test_the_refusal_of_a_request_names_who_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    users = Users(ResourceLimits(), 1 << 30, (GUEST,), ())
    left, right = socket.socketpair()
    with left, right:
        guest = users.admit(Peer(1, GUEST, GUEST), left)
    with pytest.raises(Refused) as caught:
        guest.check_commands("request Stop")
    info = caught.value.info
    assert info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    assert (info.object, info.found) == ("request Stop", f"user {GUEST}")
    assert "user 1000" in info.expected
    assert msg.Stop.__name__ == "Stop"
