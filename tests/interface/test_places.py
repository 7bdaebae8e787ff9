"""Where a daemon is found, and the proof of who serves there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.endpoint import DaemonRecord
from softnpu.emulator.interface.result import Refused, ZeResult

_DEADLINE_S = 10.0
_RECORD = DaemonRecord(pid=1234, start_time=5678, boot_id="b", status="/proc/1234/fd/9")
_RECORD_BYTES = b'{"pid":1234,"start_time":5678,"boot_id":"b","status":"/proc/1234/fd/9"}'


def test_the_record_keeps_its_bytes() -> None:
    assert msgspec.json.encode(_RECORD) == _RECORD_BYTES


def test_the_files_lie_beside_the_socket() -> None:
    path = Path("/run/x/npu.sock")
    assert endpoint.lock_path(path) == Path("/run/x/npu.sock.lock")
    assert endpoint.log_path(path) == Path("/run/x/npu.sock.log")


def test_a_record_is_read_from_the_lock_file(tmp_path: Path) -> None:
    (tmp_path / "s.lock").write_bytes(_RECORD_BYTES)
    assert endpoint.read_record(tmp_path / "s") == _RECORD


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b'{"pid":"x"}', _RECORD_BYTES.replace(b'"b"', b'"\xff"')]
)
def test_a_missing_or_unreadable_record_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "s.lock").write_bytes(content)
    assert endpoint.read_record(tmp_path / "s") is None


def test_the_environment_chooses_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTNPU_SOCKET", str(tmp_path / "mine.sock"))
    assert endpoint.default_socket() == tmp_path / "mine.sock"


def test_the_default_lies_in_a_directory_that_only_its_owner_can_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTNPU_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = endpoint.default_socket()
    assert path.name == "softnpu.sock"
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_default_directory_that_others_can_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.delenv("SOFTNPU_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    endpoint.default_socket().parent.chmod(mode)
    with pytest.raises(Refused, match=f"mode {mode:o}; expected a directory of owner") as caught:
        endpoint.default_socket()
    assert caught.value.info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A directory whose path is short enough to build paths of exactly 107 and 108 bytes in it."""
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        yield Path(folder)


@pytest.mark.parametrize("length", [60, 107, 108, 250])
def test_a_path_in_a_directory_of_any_length_can_be_bound_and_found(short_folder: Path, length: int) -> None:
    folder = short_folder / ("d" * (length - len(str(short_folder)) - len("/") - len("/npu.sock")))
    folder.mkdir()
    path = folder / "npu.sock"
    assert len(str(path)) == length
    with endpoint.new_socket() as server, endpoint.new_socket() as client:
        with endpoint.socket_address(path) as address:
            server.bind(address)
        server.listen(1)
        with endpoint.socket_address(path) as address:
            client.connect(address)
        client.send(b"hello")
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(10) == b"hello"
    assert path.is_socket()


def test_a_long_path_in_a_missing_directory_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "s"
    with pytest.raises(Refused, match="expected a directory to hold it"), endpoint.socket_address(path):
        pass


def test_the_start_time_tells_processes_apart_whatever_their_name(tmp_path: Path) -> None:
    cat = shutil.which("cat")
    assert cat is not None
    odd = tmp_path / "a) R 1 2 (b"
    odd.symlink_to(cat)
    child = subprocess.Popen([odd], stdin=subprocess.PIPE)
    try:
        mine, other = process_identity.start_time(os.getpid()), process_identity.start_time(child.pid)
        ticks_since_boot = float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")
        assert 0 < mine <= other <= ticks_since_boot + 1
    finally:
        child.kill()
        child.communicate(timeout=_DEADLINE_S)


def test_the_boot_id_is_the_kernels() -> None:
    assert len(process_identity.boot_id()) == 36
    assert process_identity.boot_id() == process_identity.boot_id()
