"""Files of other users: daemons do not serve, and clients do not connect, where others can write.

The other user is real: files that root has given away, and a child process that drops its privileges.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack
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
    """Return a world-writable directory, like /tmp."""
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


def test_a_daemon_serves_in_a_public_directory_only_with_the_sticky_bit(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    hint = _refused(start_daemon, allow_users=(GUEST,)).hint  # this user cannot enter a test's directory
    assert "/tmp" not in hint
    assert "only you or root can write" in hint
    private_dir.chmod(0o777)
    assert "no sticky bit" in _refused(start_daemon).found
    private_dir.chmod(0o1777)
    start_daemon()
    with Driver.open() as driver:
        check_works(driver.devices[0].create_context())


@pytest.mark.parametrize("kind", ["lock", "socket", "log", "link"])
def test_a_file_of_somebody_else_is_refused_and_kept(public_dir: Path, kind: str) -> None:
    place, precious = public_dir / "npu.sock", public_dir / "precious"
    precious.write_text("precious")
    path = {"lock": endpoint.lock_path(place), "socket": place}.get(kind, endpoint.log_path(place))
    if kind == "socket":
        with endpoint.new_socket() as left:
            left.bind(str(place))
    elif kind == "link":
        path.symlink_to(precious)
    else:
        path.touch()
    _give_away(path)
    with ExitStack() as stack:
        if kind == "lock":
            fcntl.flock(stack.enter_context(path.open("r+b")), fcntl.LOCK_EX)
        with pytest.raises(Refused) as caught:
            start_background(DaemonSettings(socket=str(place)))

    info = caught.value.info
    assert info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    named = {"lock": "lock file", "socket": "socket path"}.get(kind, "log file")
    assert info.object == f"{named} {path}"
    assert f"user {SOMEBODY}" in info.found
    assert "remove it" in info.hint
    assert os.path.lexists(path)
    assert precious.read_text() == "precious"


# ---------------------------------------------------------------- the client

_SERVE = """
# as root it binds, as the other user it listens: that is what the kernel tells
from softnpu.emulator.interface import endpoint
sock = endpoint.new_socket()
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
    """Have a user accept one client, and report how many bytes it sent."""

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


@pytest.mark.parametrize("where", ["public directory", "socket of another", "runtime directory"])
def test_a_client_says_nothing_to_another_user(
    serve: Callable[..., ClientProcess], private_dir: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    socket, said = private_dir / "npu.sock", f"user {SOMEBODY}"
    match where:
        case "public directory":
            private_dir.chmod(0o1777)
            server, said = serve(SOMEBODY), f"directory {private_dir}"
        case "socket of another":
            private_dir.chmod(0o755)
            server, said = serve(SOMEBODY, owner=GUEST), f"user {GUEST}"
        case _:
            monkeypatch.delenv("SOFTNPU_SOCKET")
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_dir))
            socket = endpoint.default_socket()
            server = serve(SOMEBODY, place=socket)
    error = failure(Driver.open, ZeResult.ERROR_INSUFFICIENT_PERMISSIONS)
    assert error.info.object == f"daemon at {socket}"
    assert f"user {SOMEBODY}" in error.info.found
    assert said in error.info.found
    assert server.hear() == 0
    server.finish()


def test_a_client_speaks_to_the_daemon_of_a_user_whose_directory_was_named(
    serve: Callable[..., ClientProcess], public_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = public_dir / "theirs"
    folder.mkdir(0o755)
    _give_away(folder)
    server = serve(SOMEBODY, place=folder / "npu.sock")
    monkeypatch.setenv("SOFTNPU_SOCKET", str(folder / "npu.sock"))

    # the server goes away after the first message
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
    lock.unlink()
    os.mkfifo(lock)
    assert endpoint.read_record(place) is None


def test_a_runtime_directory_of_somebody_else_is_not_used(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTNPU_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_dir))
    assert private_dir in endpoint.default_socket().parents
    _give_away(private_dir)
    assert private_dir not in endpoint.default_socket().parents
