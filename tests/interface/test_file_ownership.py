"""Ownership of files and directories: those that others may have placed are refused, by name and reason."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.emulator.common import file_ownership
from softnpu.emulator.interface import daemon_files
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

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


def test_an_own_directory_is_trusted_unless_others_can_replace_files(folder: Path) -> None:
    for mode in (0o700, 0o755, 0o711, 0o1777, 0o1770):
        folder.chmod(mode)
        daemon_files.check_folder(folder)
    for mode in (0o777, 0o702, 0o757):
        folder.chmod(mode)
        info = _refusal(lambda: daemon_files.check_folder(folder)).info
        assert str(folder) in info.object
        assert f"mode {mode:o}" in info.found
        assert "chmod go-w" in info.hint


@needs_root
def test_a_foreign_directory_and_those_below_it_are_refused(folder: Path) -> None:
    below = folder / "mine"
    below.mkdir()
    os.chown(folder, SOMEBODY, SOMEBODY)
    for path in (folder, below):
        info = _refusal(lambda path=path: daemon_files.check_folder(path)).info  # type: ignore[misc]
        assert info.object == f"directory {folder}"
        assert f"user {SOMEBODY}" in info.found


@needs_root
def test_a_foreign_link_in_the_path_is_refused_and_an_own_one_is_not(
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
def test_a_dangling_path_is_refused(private_dir: Path, target: str) -> None:
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
def test_an_access_list_that_lets_others_write_is_detected(folder: Path) -> None:
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), (2, 7, SOMEBODY), (4, 0, nobody), (0x10, 7, nobody), (0x20, 0, nobody)]
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(folder, file_ownership.ACCESS_LIST, struct.pack("<I", 2) + packed)
    _refusal(lambda: daemon_files.check_folder(folder))


@needs_root
def test_a_directory_of_another_users_daemon_is_judged_by_its_owner(folder: Path) -> None:
    for owner, mode in ((SOMEBODY, 0o755), (SOMEBODY, 0o710), (0, 0o755)):
        os.chown(folder, owner, owner)
        folder.chmod(mode)
        daemon_files.check_folder_of(folder, SOMEBODY)
    for owner, mode in ((SOMEBODY, 0o777), (0, 0o1777), (SOMEBODY, 0o1777), (7, 0o755)):
        os.chown(folder, owner, owner)
        folder.chmod(mode)
        info = _refusal(lambda: daemon_files.check_folder_of(folder, SOMEBODY)).info
        assert str(folder) in info.object


# ---------------------------------------------------------------- files


def test_a_file_is_created_for_its_owner_alone(folder: Path) -> None:
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
def test_files_that_another_user_may_have_placed_are_not_opened(
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


def test_an_own_file_is_trusted(folder: Path) -> None:
    (folder / "file").write_text("said")
    for mode in (0o600, 0o440, 0o644):
        (folder / "file").chmod(mode)
        with open(file_ownership.open_trusted(folder / "file")) as file:
            assert file.read() == "said"


@pytest.mark.parametrize(
    "make", [_link, _pipe, pytest.param(_foreign, marks=needs_root), _open_to_all, Path.mkdir]
)
def test_files_that_others_may_have_written_are_not_trusted(
    folder: Path, make: Callable[[Path], None]
) -> None:
    make(folder / "file")
    with pytest.raises(OSError, match=r"link|regular|user|mode"):
        file_ownership.open_trusted(folder / "file")
