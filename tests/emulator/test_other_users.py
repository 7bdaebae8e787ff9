"""Processes of other users: refused unless the daemon's owner allows them; then they may only use it.

The second user is real: a child process that drops its privileges before it contacts a daemon.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator import access
from softnpu.emulator.common.linux import Credentials
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.emulator.supervisor.users import Users
from tests.conftest import StartDaemon
from tests.support.cli import softnpu
from tests.support.daemon import Daemon, DaemonRefused
from tests.support.models import image, on_cpu
from tests.support.other_users import GROUP, GUEST, STRANGER, AsUser, needs_root, public_place
from tests.support.waiting import wait_until
from tests.support.work import check_works

MIB = 1 << 20


@pytest.fixture
def shared(start_daemon: StartDaemon, public_dir: Path) -> Daemon:
    """Return a daemon that admits the guest."""
    place = public_place(public_dir, users=(GUEST,))
    return start_daemon(socket=str(place), allow_users=(GUEST,), memory=64 * MIB)


# ---------------------------------------------------------------- connecting


@needs_root
def test_an_allowed_user_infers_and_no_other_user_reaches_the_socket(
    shared: Daemon, as_user: AsUser, digits: Path
) -> None:
    code = "driver = Driver.open(place)\nsay(infer(driver.devices[0].create_context()))\nhear()"
    guest = as_user(code, shared, xml=str(digits))
    assert np.array(guest.hear(60.0), np.float32).tobytes() == on_cpu(digits, image())[0].tobytes()
    assert {user.uid: user.sessions for user in shared.status().users} == {0: 0, GUEST: 1}

    stranger = as_user(
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
def test_who_is_allowed_is_let_in_by_user_or_group_by_this_daemon_and_not_the_last(
    start_daemon: StartDaemon, public_dir: Path, as_user: AsUser
) -> None:
    code = "say(outcome(lambda: Driver.open(place, autostart=False) and 'in'))"
    place = str(public_place(public_dir))
    start_daemon(socket=place, allow_users=(GUEST,)).stop()
    daemon = start_daemon(socket=place, allow_users=(STRANGER,), allow_groups=(GROUP,))
    assert as_user(code, daemon, STRANGER).hear() == {"value": "in"}
    assert "error" in as_user(code, daemon).hear()
    for groups in ([7, GROUP], [*range(100, 500), GROUP]):
        assert as_user(code, daemon, GUEST, groups=groups).hear() == {"value": "in"}

    for path in (daemon.socket.parent, daemon.socket):
        os.removexattr(path, "system.posix_acl_access")
        path.chmod(0o777)  # opened by hand: the daemon still asks the kernel who connects
    refused = as_user(code, daemon).hear()
    assert refused["error"] == "ERROR_INSUFFICIENT_PERMISSIONS", refused
    for word in (f"user {GUEST}", f"--allow-user {GUEST}", f"user {os.getuid()}"):
        assert word in refused["text"]


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


@pytest.mark.quick
def test_owner_and_root_may_command_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    users = Users(ResourceLimits(), 1 << 30, (GUEST,), ())
    left, right = socket.socketpair()
    with left, right:
        for uid, commands in ((1000, True), (0, True), (GUEST, False)):
            assert users.admit(Credentials(1, uid, uid), left).may_command == commands
        with pytest.raises(Refused) as caught:
            users.admit(Credentials(1, STRANGER, STRANGER), left)
        assert caught.value.info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    guest = users.admit(Credentials(1, GUEST, GUEST), left)
    assert guest.memory.limit == (3 << 30) // 4
    with pytest.raises(Refused) as caught:
        guest.check_commands("request Stop")
    info = caught.value.info
    assert (info.object, info.found) == ("request Stop", f"user {GUEST}")
    assert "user 1000" in info.expected


# ---------------------------------------------------------------- a guest's rights


@needs_root
def test_a_guest_cannot_command_the_daemon_and_sees_only_itself(shared: Daemon, as_user: AsUser) -> None:
    with Driver.open(shared.socket) as mine:
        mine.devices[0].create_context().alloc_host(MIB)
        guest = as_user(
            """
            driver = Driver.open(place)
            context = driver.devices[0].create_context()
            state = driver.status()
            say([[s.uid for s in state.sessions], [u.uid for u in state.users], state.session_count])
            say(outcome(driver.stop_daemon))
            say(outcome(lambda: faults.inject("reset", socket=place)))
            say(outcome(lambda: faults.status(place)))
            say(outcome(lambda: faults.clear(None, place)))
            say(outcome(lambda: driver.status().server and context.alloc_host(64).size))
            """,
            shared,
        )
        assert guest.hear() == [[GUEST], [GUEST], 1]
        for _ in range(4):
            refused = guest.hear()
            assert refused["error"] == "ERROR_INSUFFICIENT_PERMISSIONS"
            assert f"user {GUEST}" in refused["text"]
        assert guest.hear() == {"value": 64}, "its session goes on"
        state = shared.status()
        assert sorted(session.uid for session in state.sessions) in ([0], [0, GUEST])
        assert shared.alive


@needs_root
def test_a_guest_cannot_take_everything(shared: Daemon, as_user: AsUser) -> None:
    guest = as_user(
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
def test_a_guest_cannot_write_to_what_it_may_read(shared: Daemon, as_user: AsUser) -> None:
    guest = as_user(
        """
        sock = endpoint.new_socket()
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
    )
    magic, reopened, written, changed, listed = guest.hear()
    assert magic == "SNPUSTAT"
    for tried in (reopened, written, changed, listed):
        assert "error" in tried, "it may only read"


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
    unknown = softnpu("daemon", "--socket", place, "--allow-user", "no-such-user").misuse
    assert "no-such-user" in unknown
    assert "--allow-user" in unknown
