"""A daemon's paths, and the record in its lock file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.endpoint import DaemonRecord
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_RECORD = DaemonRecord(pid=1234, start_time=5678, boot_id="b", status="/proc/1234/fd/9")
_RECORD_BYTES = b'{"pid":1234,"start_time":5678,"boot_id":"b","status":"/proc/1234/fd/9"}'


def test_the_record_keeps_its_bytes_and_is_read_from_the_lock_file(tmp_path: Path) -> None:
    assert msgspec.json.encode(_RECORD) == _RECORD_BYTES
    (tmp_path / "s.lock").write_bytes(_RECORD_BYTES)
    assert endpoint.read_record(tmp_path / "s") == _RECORD


def test_a_missing_or_unreadable_record_is_none(tmp_path: Path) -> None:
    assert endpoint.read_record(tmp_path / "s") is None
    for content in (b"", b"{", b"[]", b'{"pid":"x"}', _RECORD_BYTES.replace(b'"b"', b'"\xff"')):
        (tmp_path / "s.lock").write_bytes(content)
        assert endpoint.read_record(tmp_path / "s") is None


def test_the_files_lie_beside_the_socket_chosen_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTNPU_SOCKET", str(tmp_path / "mine.sock"))
    path = endpoint.default_socket()
    assert path == tmp_path / "mine.sock"
    assert endpoint.lock_path(path) == tmp_path / "mine.sock.lock"
    assert endpoint.log_path(path) == tmp_path / "mine.sock.log"


def test_the_default_lies_in_a_private_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTNPU_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = endpoint.default_socket().parent
    assert folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o755, 0o710, 0o701):
        folder.chmod(mode)
        with pytest.raises(Refused, match=f"mode {mode:o}; expected a directory of owner") as caught:
            endpoint.default_socket()
        assert caught.value.info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A directory with a path short enough for all socket paths of the test below."""
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        yield Path(folder)


@pytest.mark.parametrize("length", [60, 107, 108, 250])
def test_a_path_in_a_directory_of_any_length_can_be_bound_and_found(short_folder: Path, length: int) -> None:
    folder = short_folder / ("d" * (length - len(str(short_folder)) - len("/") - len("/npu.sock")))
    folder.mkdir()
    path = folder / "npu.sock"
    assert len(str(path)) == length
    with endpoint.new_socket() as server:
        with endpoint.socket_address(path) as address:
            server.bind(address)
        assert not endpoint.accepts(path)
        server.listen(1)
        assert endpoint.accepts(path)
    assert path.is_socket()


def test_a_long_path_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "s"
    with pytest.raises(Refused, match="expected a directory to hold it"), endpoint.socket_address(path):
        pass
