"""A private view of /sys and /dev in which the emulated NPU is where monitors look for the real one.

`softnpu run --node` starts this module with the view's folder and the program, which it becomes. The mounts
are those of the program and its children alone; a user needs no rights for them but a user namespace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from pathlib import Path
from typing import Final

from softnpu.tools.shared.failures import ToolError, print_error
from softnpu.tools.shared.program import unusable

TREE: Final = "sys"
"""The files of the NPU, in the folder: `SysfsTree` keeps them."""
VIEW: Final = "view"
"""An empty folder, in the folder: the view is put together there."""
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_DETACH = 2
_OURS: Final = ("class/accel", "class/intel_pmt", "bus/pci/drivers/intel_vpu")
"""Folders that hide those of the machine; all others are added to."""
_SLOTS: Final = "devices/pci0000:00"
_libc = ctypes.CDLL(None, use_errno=True)


class _Forbidden(Exception):
    """A call of the kernel that a user may not make here."""


def enter(folder: Path, own_users: bool) -> None:
    """Give this process, and what it becomes, the view; with `own_users` as a user without rights can.

    Raises `ToolError` where the machine forbids it.
    """
    try:
        _own_mounts(own_users)
        view = folder / VIEW
        _mount("tmpfs", view, "tmpfs", 0, "mode=755")
        system, devices = view / "sys", view / "dev"
        _merge(Path("/sys"), folder / TREE, system, "")
        _devices(sorted(entry.name for entry in (folder / TREE / "class/accel").iterdir()), devices)
        for made, place in ((system, "/sys"), (devices, "/dev")):
            _mount(str(made), Path(place), None, _BIND | _RECURSIVE)
        # monitors of file systems would list everything twice
        _checked(_libc.umount2(os.fsencode(view), _DETACH), f"umount {view}")
    except (_Forbidden, OSError) as error:
        raise ToolError(
            "option --node",
            found=str(error),
            expected="a machine on which a user may have a namespace with mounts of its own",
            hint="allow it (sysctl kernel.apparmor_restrict_unprivileged_userns=0 or "
            "kernel.unprivileged_userns_clone=1; a container needs --cap-add SYS_ADMIN), or give the "
            "monitor the folder of 'softnpu daemon --sysfs DIR'",
        ) from error


def _own_mounts(own_users: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_MOUNTS | (_NEW_USER if own_users else 0)), "unshare")
    if own_users:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
    _mount("none", Path("/"), None, _RECURSIVE | _PRIVATE)


def _merge(real: Path, ours: Path, made: Path, below: str) -> None:
    """Make a folder with all that the machine has there, and our entries."""
    made.mkdir()
    theirs = {entry.name for entry in os.scandir(real)}
    mine = {entry.name for entry in os.scandir(ours)} - {".softnpu"}
    for name in sorted(theirs | mine):
        path = f"{below}/{name}".lstrip("/")
        if name not in mine:
            _show(real / name, made / name)
        elif path in _OURS or below == _SLOTS or name not in theirs or (ours / name).is_symlink():
            _show(ours / name, made / name)
        else:
            _merge(real / name, ours / name, made / name, path)


def _devices(names: list[str], made: Path) -> None:
    """Make a /dev with nodes of these names: character devices that open, and know no call."""
    made.mkdir()
    for entry in os.scandir("/dev"):
        if entry.name != "accel":
            _show(Path(entry), made / entry.name)
    (made / "accel").mkdir()
    for name in names:
        (made / "accel" / name).touch()
        _mount("/dev/null", made / "accel" / name, None, _BIND)


def _show(source: Path, place: Path) -> None:
    """Make an entry of another folder appear here."""
    try:
        mode = source.lstat().st_mode
        if stat.S_ISLNK(mode):
            place.symlink_to(source.readlink())
            return
        if stat.S_ISDIR(mode):
            place.mkdir()
        else:
            place.touch()
        _mount(str(source), place, None, _BIND | _RECURSIVE)
    except FileNotFoundError:  # a device that has just gone
        return


def _mount(source: str, place: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = (None if text is None else os.fsencode(text) for text in (source, str(place), kind))
    code = _libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode())
    _checked(code, f"mount {place}")


def _checked(code: int, call: str) -> None:
    if code == 0:
        return
    number = ctypes.get_errno()
    if number == errno.ENOENT:
        raise FileNotFoundError(number, os.strerror(number))
    raise _Forbidden(f"{call}: {os.strerror(number)}")


def main() -> None:
    """Become the program of the command line, in the view of the folder before it."""
    folder, *command = sys.argv[1:]
    try:
        # root needs no users of its own: files of others would be nobody's
        enter(Path(folder), own_users=os.geteuid() != 0)
    except ToolError as error:
        print_error(error)
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as failure:
        sys.exit(getattr(unusable(command[0], failure), "exit_code", 1))


if __name__ == "__main__":
    main()
