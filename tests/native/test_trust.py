"""The daemons that the driver trusts, and the variables that it obeys. Other users are real: needs root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.native.building import compile_program
from tests.native.conftest import Run
from tests.native.test_start import FOUND, INIT, UNINITIALIZED
from tests.support.waiting import wait_readable, wait_until

STRANGER, GUEST = 65532, 65533
INSUFFICIENT_PERMISSIONS = "0x70010000"

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")


class Pretender:
    """Another user's process that serves a socket, and reports how many bytes its first client has sent."""

    def __init__(self, place: Path, user: int) -> None:
        reader, writer = os.pipe()
        self._reader = reader
        self._pid = os.fork()
        if self._pid == 0:
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(place))
            listener.listen()  # here the kernel records its user
            os.write(writer, b"ready")
            client, _ = listener.accept()
            os.write(writer, b"%d" % len(client.recv(1 << 16)))
            os._exit(0)
        os.close(writer)
        assert os.read(reader, 16) == b"ready"

    def heard(self) -> int:
        """Return the bytes of the first message; 0 if the client left without one."""
        assert wait_readable(self._reader)
        return int(os.read(self._reader, 16))

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._reader)


@contextmanager
def pretender(place: Path, user: int = STRANGER) -> Iterator[Pretender]:
    serving = Pretender(place, user)
    try:
        yield serving
    finally:
        serving.close()


def folder_of(owner: int, mode: int, at: Path) -> Path:
    """Return a new directory with this owner and mode, which everybody can reach."""
    at.parent.chmod(0o711)
    at.mkdir()
    at.chmod(mode)
    os.chown(at, owner, owner)
    return at


@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_daemon_of_another_user_in_a_world_writable_directory_gets_nothing(
    run: Run, private_dir: Path, mode: int
) -> None:
    place = folder_of(0, mode, private_dir / "shared") / "npu.sock"
    with pretender(place) as other:
        done = run(INIT, environment={"SOFTNPU_SOCKET": str(place)})
        assert other.heard() == 0
    assert done.stdout.split()[0] == INSUFFICIENT_PERMISSIONS
    assert f"it belongs to user {STRANGER}" in done.stderr
    assert "others may write it" in done.stderr


@needs_root
def test_daemon_of_another_user_below_a_foreign_directory_gets_nothing(run: Run, private_dir: Path) -> None:
    folder_of(STRANGER - 1, 0o755, private_dir / "third")
    place = folder_of(STRANGER, 0o755, private_dir / "third" / "own") / "npu.sock"
    with pretender(place) as other:
        done = run(INIT, environment={"SOFTNPU_SOCKET": str(place)})
        assert other.heard() == 0
    assert done.stdout.split()[0] == INSUFFICIENT_PERMISSIONS
    assert f"{private_dir / 'third'}: it belongs to user {STRANGER - 1}" in done.stderr


@needs_root
def test_explicitly_named_daemon_of_another_user_is_trusted_in_its_own_directory(
    run: Run, private_dir: Path
) -> None:
    place = folder_of(STRANGER, 0o755, private_dir / "own") / "npu.sock"
    with pretender(place) as other:
        done = run(INIT, environment={"SOFTNPU_SOCKET": str(place)})
        assert other.heard() > 0
    assert done.stdout.split()[0] == UNINITIALIZED  # it ends after the first message, and then there is none


@needs_root
def test_daemon_of_another_user_at_the_default_place_gets_nothing(run: Run, private_dir: Path) -> None:
    folder = private_dir / "softnpu"
    folder.mkdir(mode=0o700)
    private_dir.chmod(0o711)
    os.chown(folder, STRANGER, STRANGER)
    with pretender(folder / "softnpu.sock") as other:
        os.chown(folder, 0, 0)
        done = run(INIT, environment={"SOFTNPU_SOCKET": "", "XDG_RUNTIME_DIR": str(private_dir)})
        assert other.heard() == 0
    assert done.stdout.split()[0] == INSUFFICIENT_PERMISSIONS
    assert f"it belongs to user {STRANGER}" in done.stderr


@pytest.fixture
def their_default_place() -> Iterator[Path]:
    """The directory of the default socket of `GUEST`, without a daemon."""
    folder = Path(f"/tmp/softnpu-{GUEST}")
    folder.mkdir(mode=0o700)
    os.chown(folder, GUEST, GUEST)
    yield folder
    folder.rmdir()


@needs_root
def test_privileged_program_obeys_no_variable_and_starts_no_daemon(
    native: NativeLibrary, surroundings: dict[str, str], private_dir: Path, their_default_place: Path
) -> None:
    # an installation whose Python reports that it was run, and a program with GUEST's rights that uses it
    prefix = folder_of(0, 0o755, private_dir / "prefix")
    libraries = prefix / "lib" / "python3" / "site-packages" / "softnpu" / "driver" / "native" / "lib"
    libraries.mkdir(parents=True)
    shutil.copy(native.loader, libraries)
    program = compile_program("first_call", native, prefix, f"-Wl,-rpath,{libraries}")
    os.chown(program, GUEST, GUEST)
    program.chmod(0o4755)
    proofs = folder_of(0, 0o777, private_dir / "proofs")
    for starter in (prefix / "bin" / "python", proofs / "bin" / "python"):
        starter.parent.mkdir()
        starter.write_text(f"#!/bin/sh\nid -u >> {proofs}/run\n")
        starter.chmod(0o755)
    (proofs / "bin" / "softnpu").write_text(f"#!{proofs}/bin/python\n")
    (proofs / "bin" / "softnpu").chmod(0o755)
    environment = {
        "SOFTNPU_PYTHON": f"{proofs}/bin/python",
        "SOFTNPU_SOCKET": f"{proofs}/npu.sock",
        "SOFTNPU_AUTOSTART": "1",
        "XDG_RUNTIME_DIR": str(proofs),
        "PATH": f"{proofs}/bin:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [program],
        env={**surroundings, **environment},
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    kind, result = done.stdout.split()
    if kind == "ordinary":
        pytest.skip("no setuid programs on this file system")
    assert result == UNINITIALIZED
    assert str(their_default_place) in done.stderr
    assert "starts none" in done.stderr
    assert sorted(entry.name for entry in proofs.iterdir()) == ["bin"]


def test_a_daemon_that_ends_before_answering_hello_is_replaced(run: Run, private_dir: Path) -> None:
    place = private_dir / "npu.sock"
    pid = os.fork()
    if pid == 0:
        # a daemon that ends: it closes the listener and removes the name before it ends its connections
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(place))
        listener.listen()
        client, _ = listener.accept()
        listener.close()
        place.unlink()
        client.recv(1 << 16)
        os._exit(0)
    try:
        wait_until(place.exists, what="the socket")
        environment = {"SOFTNPU_AUTOSTART": "1", "SOFTNPU_IDLE_S": "0.5"}
        assert run(INIT, environment=environment).stdout.split() == FOUND
    finally:
        os.waitpid(pid, 0)
    wait_until(lambda: not place.exists(), what="the end of the daemon")
