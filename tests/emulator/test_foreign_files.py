"""Sockets where others can put something: a daemon does not serve there, a client does not speak to them.

The other user is real: files that root has given away, and a child process that gives its rights away.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.daemon import start_background
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conftest import StartDaemon, StartPython
from tests.support.client import ClientProcess
from tests.support.daemon import DaemonRefused
from tests.support.work import check_works, failure

SOMEBODY, GUEST = 65533, 65532
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def public_dir(private_dir: Path) -> Path:
    """A directory where everybody can make files, as /tmp is."""
    private_dir.chmod(0o1777)
    return private_dir


def _give_away(path: Path) -> None:
    os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)


def _refused(start_daemon: StartDaemon, **settings: Any) -> ErrorInfo:
    with pytest.raises(DaemonRefused) as caught:
        start_daemon(**settings)
    assert caught.value.info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    return caught.value.info


# ---------------------------------------------------------------- the daemon


@pytest.mark.parametrize("allowed", [(), (GUEST,)])
def test_a_daemon_does_not_serve_in_the_directory_of_somebody_else(
    start_daemon: StartDaemon, private_dir: Path, allowed: tuple[int, ...]
) -> None:
    private_dir.chmod(0o755)
    folder = private_dir / "npu-shared"
    folder.mkdir(0o755)
    _give_away(folder)
    info = _refused(start_daemon, socket=str(folder / "npu.sock"), allow_users=allowed)

    assert info.object == f"directory {folder}"
    assert f"user {SOMEBODY}" in info.found
    assert [path.name for path in folder.iterdir()] == ["npu.sock.log"], "that of the test itself"


def test_a_daemon_does_not_serve_where_everybody_can_replace_its_socket(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    private_dir.chmod(0o777)
    assert "no sticky bit" in _refused(start_daemon).found


def test_a_daemon_serves_in_a_directory_with_the_sticky_bit(
    start_daemon: StartDaemon, public_dir: Path
) -> None:
    daemon = start_daemon()
    assert daemon.socket.parent == public_dir
    with Driver.open() as driver:
        check_works(driver.devices[0].create_context())


def test_the_lock_of_somebody_else_is_told_as_that(start_daemon: StartDaemon, public_dir: Path) -> None:
    lock = endpoint.lock_path(public_dir / "npu.sock")
    lock.touch()
    _give_away(lock)
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        info = _refused(start_daemon)
    assert info.object == f"lock file {lock}"
    assert f"user {SOMEBODY}" in info.found
    assert "remove it" in info.hint


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_log_of_somebody_else_is_not_written(public_dir: Path, kind: str) -> None:
    place = public_dir / "npu.sock"
    log, precious = endpoint.log_path(place), public_dir / "precious"
    precious.write_text("precious")
    if kind == "link":
        log.symlink_to(precious)
    else:
        log.touch()
    _give_away(log)

    with pytest.raises(Refused) as caught:
        start_background(DaemonSettings(socket=str(place)))

    assert caught.value.info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    assert caught.value.info.object == f"log file {log}"
    assert f"user {SOMEBODY}" in caught.value.info.found
    assert precious.read_text() == "precious"
    assert not place.exists()


def test_the_socket_of_somebody_else_is_refused_and_kept(start_daemon: StartDaemon, public_dir: Path) -> None:
    place = public_dir / "npu.sock"
    with endpoint.new_socket() as left:
        left.bind(str(place))
    _give_away(place)
    info = _refused(start_daemon)
    assert f"user {SOMEBODY}" in info.found
    assert place.is_socket()


def test_where_to_share_a_daemon_is_no_place_of_the_first_comer(start_daemon: StartDaemon) -> None:
    info = _refused(start_daemon, allow_users=(GUEST,))  # which cannot enter the directory of a test
    assert "/tmp" not in info.hint
    assert "only you or root can write" in info.hint


# ---------------------------------------------------------------- the client

_SERVE = """
# as root it binds, as the other user it listens: that is what the kernel tells
from softnpu.emulator.interface import places
sock = places.new_socket()
place = Path(given["socket"])
sock.bind(str(place))
os.chown(place, given["owner"], given["owner"])
place.chmod(0o666)
os.setresgid(given["uid"], given["uid"], given["uid"])
os.setresuid(given["uid"], given["uid"], given["uid"])
linux.die_with_parent(int(sys.argv[1]))
sock.listen()
say("listens")
client, _ = sock.accept()
say(len(client.recv(65536)))
"""


@pytest.fixture
def serve(start_python: StartPython, private_dir: Path) -> Callable[..., ClientProcess]:
    """Has a user accept one client, and say how many bytes that has sent."""

    def start(uid: int, owner: int | None = None, place: Path | None = None) -> ClientProcess:
        server = start_python(
            dedent(_SERVE),
            socket=str(place or private_dir / "npu.sock"),
            uid=uid,
            owner=uid if owner is None else owner,
        )
        assert server.hear() == "listens"
        return server

    return start


def _said_nothing_to(server: ClientProcess, object: Path) -> str:
    """The reason why the daemon was refused."""
    error = failure(Driver.open, ZeResult.ERROR_INSUFFICIENT_PERMISSIONS)
    assert error.info.object == f"daemon at {object}"
    assert f"user {SOMEBODY}" in error.info.found
    assert server.hear() == 0
    server.finish()
    return error.info.found


def test_a_client_says_nothing_to_who_came_first_to_a_public_directory(
    serve: Callable[..., ClientProcess], public_dir: Path
) -> None:
    server = serve(SOMEBODY)
    assert f"directory {public_dir}" in _said_nothing_to(server, public_dir / "npu.sock")


def test_a_client_says_nothing_to_who_serves_the_socket_of_another_user(
    serve: Callable[..., ClientProcess], private_dir: Path
) -> None:
    private_dir.chmod(0o755)
    server = serve(SOMEBODY, owner=GUEST)
    assert f"user {GUEST}" in _said_nothing_to(server, private_dir / "npu.sock")


def test_a_client_says_nothing_to_another_user_in_a_default_place(
    serve: Callable[..., ClientProcess], private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTNPU_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_dir))
    place = endpoint.default_socket()
    _said_nothing_to(serve(SOMEBODY, place=place), place)


def test_a_client_speaks_to_the_daemon_of_a_user_whose_directory_was_named(
    serve: Callable[..., ClientProcess], public_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = public_dir / "theirs"
    folder.mkdir(0o755)
    _give_away(folder)
    server = serve(SOMEBODY, place=folder / "npu.sock")
    monkeypatch.setenv("SOFTNPU_SOCKET", str(folder / "npu.sock"))

    # the server goes away after the first word
    failure(Driver.open, ZeResult.ERROR_UNINITIALIZED)

    assert server.hear() > 0
    server.finish()
    (folder / "npu.sock").unlink()


# ---------------------------------------------------------------- the record of a lock file


def test_a_record_is_not_believed_if_its_file_is_another_users(public_dir: Path) -> None:
    place = public_dir / "npu.sock"
    lock = endpoint.lock_path(place)
    lock.write_text(f'{{"pid":{os.getpid()},"start_time":1,"boot_id":"b","status":"/proc/self/fd/0"}}')
    assert endpoint.read_record(place) is not None
    _give_away(lock)
    assert endpoint.read_record(place) is None, "else 'stop --force' would kill any process"


def test_a_lock_file_that_is_a_pipe_is_no_record(public_dir: Path) -> None:
    os.mkfifo(endpoint.lock_path(public_dir / "npu.sock"))
    assert endpoint.read_record(public_dir / "npu.sock") is None


def test_a_runtime_directory_of_somebody_else_is_not_used(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = private_dir / "theirs"
    theirs.mkdir()
    monkeypatch.delenv("SOFTNPU_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    assert theirs in endpoint.default_socket().parents
    _give_away(theirs)
    assert theirs not in endpoint.default_socket().parents
