"""Whose files and directories: what others may have put there is refused, by its name and the reason."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.emulator.common import file_ownership
from softnpu.emulator.interface.result import Refused, ZeResult

SOMEBODY = 65533
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


def _refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.info.result == ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
    return caught.value


@pytest.fixture
def folder(private_dir: Path) -> Path:
    folder = private_dir / "folder"
    folder.mkdir()
    return folder


# ---------------------------------------------------------------- directories


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o711, 0o1777, 0o1770])
def test_a_directory_of_ours_where_nobody_can_replace_files_is_good(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    daemon_files.check_folder(folder)


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o757])
def test_a_directory_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    info = _refusal(lambda: daemon_files.check_folder(folder)).info
    assert str(folder) in info.object
    assert f"mode {mode:o}" in info.found
    assert "chmod go-w" in info.hint


@needs_root
def test_a_directory_of_somebody_else_is_refused(folder: Path) -> None:
    os.chown(folder, SOMEBODY, SOMEBODY)
    info = _refusal(lambda: daemon_files.check_folder(folder)).info
    assert str(folder) in info.object
    assert f"user {SOMEBODY}" in info.found


@needs_root
def test_a_directory_below_one_of_somebody_else_is_refused(folder: Path) -> None:
    below = folder / "mine"
    below.mkdir()
    os.chown(folder, SOMEBODY, SOMEBODY)
    info = _refusal(lambda: daemon_files.check_folder(below)).info
    assert info.object == f"directory {folder}"


@needs_root
def test_a_link_of_somebody_else_on_the_way_is_refused_and_one_of_ours_is_not(
    folder: Path,
) -> None:
    link = folder.with_name("link")
    link.symlink_to("folder/../folder")
    daemon_files.check_folder(link)
    os.lchown(link, SOMEBODY, SOMEBODY)
    info = _refusal(lambda: daemon_files.check_folder(link)).info
    assert info.object == f"symbolic link {link}"
    assert "symbolic link" in info.expected


@pytest.mark.parametrize("target", ["loop", "nowhere"])
def test_a_way_that_leads_nowhere_is_refused(private_dir: Path, target: str) -> None:
    (private_dir / "loop").symlink_to(target)
    with pytest.raises(Refused, match=str(private_dir)) as caught:
        daemon_files.check_folder(private_dir / "loop")
    assert caught.value.info.result == ZeResult.ERROR_UNINITIALIZED


@needs_root
def test_a_group_of_one_user_alone_counts_as_that_user(folder: Path) -> None:
    folder.chmod(0o770)  # root's own group has no other member
    daemon_files.check_folder(folder)
    os.chown(folder, 0, SOMEBODY)
    assert "mode 770" in _refusal(lambda: daemon_files.check_folder(folder)).info.found


@needs_root
def test_an_access_list_that_lets_somebody_write_is_seen(folder: Path) -> None:
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), (2, 7, SOMEBODY), (4, 0, nobody), (0x10, 7, nobody), (0x20, 0, nobody)]
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(folder, file_ownership.ACCESS_LIST, struct.pack("<I", 2) + packed)
    _refusal(lambda: daemon_files.check_folder(folder))


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [(SOMEBODY, 0o755), (SOMEBODY, 0o710), (0, 0o755)])
def test_a_directory_for_the_daemon_of_another_user(folder: Path, owner: int, mode: int) -> None:
    folder.chmod(mode)
    os.chown(folder, owner, owner)
    daemon_files.check_folder_of(folder, SOMEBODY)


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [(SOMEBODY, 0o777), (0, 0o1777), (SOMEBODY, 0o1777), (7, 0o755)])
def test_a_directory_where_it_may_be_the_daemon_of_anybody(folder: Path, owner: int, mode: int) -> None:
    os.chown(folder, owner, owner)
    folder.chmod(mode)
    info = _refusal(lambda: daemon_files.check_folder_of(folder, SOMEBODY)).info
    assert str(folder) in info.object


# ---------------------------------------------------------------- files


def test_a_file_is_made_for_its_owner_alone(folder: Path) -> None:
    os.close(daemon_files.open_own(folder / "file", os.O_RDWR, "lock file"))
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o600
    os.close(daemon_files.open_own(folder / "file", os.O_RDWR, "lock file"))


def _link(path: Path) -> None:
    path.with_name("precious").write_text("precious")
    path.symlink_to("precious")


def _second_name(path: Path) -> None:
    path.with_name("precious").write_text("precious")
    path.hardlink_to(path.with_name("precious"))


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _foreign(path: Path) -> None:
    path.touch()
    os.chown(path, SOMEBODY, SOMEBODY)


def _open_to_all(path: Path) -> None:
    path.touch()
    path.chmod(0o666)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (_link, "symbolic link"),
        (_second_name, "2 names"),
        (_pipe, "no regular file"),
        pytest.param(_foreign, f"user {SOMEBODY}", marks=needs_root),
        (_open_to_all, "mode 666"),
    ],
)
def test_what_another_user_can_have_put_there_is_not_opened(
    folder: Path, make: Callable[[Path], None], found: str
) -> None:
    make(folder / "file")
    descriptors = len(os.listdir("/proc/self/fd"))
    info = _refusal(lambda: daemon_files.open_own(folder / "file", os.O_RDWR, "lock file")).info
    assert info.object == f"lock file {folder / 'file'}"
    assert found in info.found
    assert "remove it" in info.hint
    assert len(os.listdir("/proc/self/fd")) == descriptors
    if (folder / "precious").exists():
        assert (folder / "precious").read_text() == "precious"


@pytest.mark.parametrize("mode", [0o600, 0o440, 0o644])
def test_a_file_of_ours_is_trusted(folder: Path, mode: int) -> None:
    (folder / "file").write_text("said")
    (folder / "file").chmod(mode)
    with open(file_ownership.open_trusted(folder / "file")) as file:
        assert file.read() == "said"


@pytest.mark.parametrize(
    "make", [_link, _pipe, pytest.param(_foreign, marks=needs_root), _open_to_all, Path.mkdir]
)
def test_what_others_may_have_said_is_not_trusted(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / "file")
    with pytest.raises(OSError, match=r"link|regular|user|mode"):
        file_ownership.open_trusted(folder / "file")
