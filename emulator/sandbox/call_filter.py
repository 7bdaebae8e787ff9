"""A seccomp filter for a compute process: it denies calls useful only to an attacker.

Denied calls fail with EPERM, so that libraries can do without. `openat2` and `clone3` take their arguments in
memory, which a filter cannot read: they fail with ENOSYS, and glibc falls back to the older calls. So does
every call newer than this list.

Numbers are those of x86-64; on other machines there is no filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from typing import Final

_REFUSED: Final[dict[str, tuple[int, ...]]] = {
    "other programs: execve, execveat, fork, vfork": (59, 322, 57, 58),
    "sockets: socket, connect, accept, bind, listen, socketpair, accept4": (41, 42, 43, 49, 50, 53, 288),
    "memory and descriptors of others: ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_open,"
    " pidfd_getfd, process_madvise, process_mrelease, migrate_pages, move_pages, get_robust_list": (
        101, 310, 311, 312, 434, 438, 440, 448, 256, 279, 274,
    ),
    "SysV memory, semaphores, message queues, which have names for all of a user: shmget, shmat, shmctl,"
    " semget, semop, semctl, msgget, msgsnd, msgrcv, msgctl, semtimedop, mq_open, mq_unlink": (
        29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241,
    ),
    "processes and threads of others: tkill, setpriority, sched_setparam, sched_setscheduler, sched_setattr,"
    " ioprio_set, pidfd_send_signal, setpgid, setsid": (200, 141, 142, 144, 314, 251, 424, 109, 112),
    "the kernel: init_module, delete_module, finit_module, kexec_load, kexec_file_load, bpf, perf_event_open,"
    " userfaultfd, add_key, request_key, keyctl, io_uring, io_setup, modify_ldt, personality, iopl, ioperm,"
    " acct, syslog, reboot, swapon, swapoff, sethostname, setdomainname, quotactl, settimeofday, adjtimex,"
    " clock_settime, clock_adjtime, sync, syncfs, vhangup, seccomp, memfd_secret, lsm_set_self_attr": (
        175, 176, 313, 246, 320, 321, 298, 323, 248, 249, 250, 425, 426, 427, 206, 154, 135, 172, 173, 163,
        103, 169, 167, 168, 170, 171, 179, 443, 164, 159, 227, 305, 162, 306, 153, 317, 447, 460,
    ),
    "other views of the file system: pivot_root, chroot, mount, umount2, unshare, setns, name_to_handle_at,"
    " open_by_handle_at, fanotify_init, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick,"
    " mount_setattr": (
        155, 161, 165, 166, 272, 308, 303, 304, 300, 428, 429, 430, 431, 432, 433, 442,
    ),
}  # fmt: skip
_CHANGES: Final = (
    # truncate, rename, mkdir, rmdir, creat, link, unlink, symlink, chmod, fchmod, chown, fchown, lchown
    # mknod
    76, 82, 83, 84, 85, 86, 87, 88, 90, 91, 92, 93, 94, 133,
    # utime, utimes, futimesat, mkdirat, mknodat, fchownat, unlinkat, renameat, linkat, symlinkat, fchmodat
    132, 235, 261, 258, 259, 260, 263, 264, 265, 266, 268,
    # setxattr, lsetxattr, fsetxattr, removexattr, lremovexattr, fremovexattr, renameat2, fchmodat2
    188, 189, 190, 197, 198, 199, 316, 452,
)  # fmt: skip
"""Calls that change files or their attributes by name."""
_ABSENT: Final = (435, 437)  # clone3, openat2
_NEWEST: Final = 462
"""Calls above it have not been reviewed."""

_OPEN, _OPENAT, _CLONE, _FCNTL, _IOCTL, _PRCTL, _UTIMENSAT = 2, 257, 56, 72, 16, 157, 280
_TO_A_PROCESS: Final = (62, 234, 129, 297)  # kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo
_OF_A_PROCESS: Final = (302, 203)  # prlimit64, sched_setaffinity: 0 is this one
_THREAD: Final = 0x100 | 0x10000  # CLONE_VM, CLONE_THREAD
_CHANGING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FCNTLS: Final = (
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW
    *range(8),
    # F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_DUPFD_CLOEXEC, F_ADD_SEALS, F_GET_SEALS
    36, 37, 38, 1030, 1033, 1034,
)  # fmt: skip
"""Excluded: owners of descriptor signals, leases (they block others' access), larger pipes."""
_IOCTLS: Final = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONBIO, FIONREAD, FIONCLEX, FIOCLEX. Others change files, terminals, owners."""
_PRCTLS: Final = (1, 4, 22, 62)
"""Not PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SCHED_CORE."""

_X86_64: Final = 0xC000003E
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_ALLOW: Final = 0x7FFF0000
_FAIL: Final = 0x00050000
_SET_FILTER, _ALL_THREADS, _SECCOMP = 1, 1, 317

_Step = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def is_known() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() == "x86_64" and struct.calcsize("P") == 8


def install(*, opens_files: bool) -> None:
    """Install the filter, in all threads. Needs `no_new_privs`. Raises `OSError` if the kernel refuses.

    `opens_files`: it may open files to write them.
    """
    steps = _steps(opens_files=opens_files)
    encoded = b"".join(struct.pack("=HBBI", *step) for step in steps)
    program = _Program(len(steps), encoded)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    if call(_SECCOMP, _SET_FILTER, _ALL_THREADS, ctypes.byref(program)):
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")


def _steps(*, opens_files: bool) -> list[_Step]:
    pid = os.getpid()
    steps: list[_Step] = [
        _load(_ARCHITECTURE), (_EQUAL, 1, 0, _X86_64), _fail(errno.EPERM),
        _load(_NUMBER),
        # the calls of x32 begin far above
        (_GREATER, 0, 1, _NEWEST), _fail(errno.ENOSYS),
    ]  # fmt: skip
    for number in _ABSENT:
        steps += _of(number, [_fail(errno.ENOSYS)])
    for number in sorted({each for numbers in (*_REFUSED.values(), _CHANGES) for each in numbers}):
        steps += _of(number, [_fail(errno.EPERM)])
    # without a name it is about a descriptor; both halves of the pointer
    named = [_load_argument(1), (_EQUAL, 0, 2, 0), _load_argument(1, 4), (_EQUAL, 1, 0, 0), _refuse()]
    steps += _of(_UTIMENSAT, [*named, _allow()])
    if not opens_files:
        for number, at in ((_OPEN, 1), (_OPENAT, 2)):
            steps += _of(number, [_load_argument(at), (_ANY_BIT, 0, 1, _CHANGING), _refuse(), _allow()])
    both = [_load_argument(0), (_AND, 0, 0, _THREAD), (_EQUAL, 1, 0, _THREAD), _refuse(), _allow()]
    steps += _of(_CLONE, both)
    for number in _TO_A_PROCESS:
        steps += _of(number, [_load_argument(0), (_EQUAL, 1, 0, pid), _refuse(), _allow()])
    own = [_load_argument(0), (_EQUAL, 2, 0, pid), (_EQUAL, 1, 0, 0), _refuse(), _allow()]
    for number in _OF_A_PROCESS:
        steps += _of(number, own)
    for number, values in ((_FCNTL, _FCNTLS), (_IOCTL, _IOCTLS)):
        steps += _of(number, [*_either(1, values, _allow()), _refuse()])
    steps += _of(_PRCTL, [*_either(0, _PRCTLS, _refuse()), _allow()])
    return [*steps, _allow()]


def _of(number: int, then: list[_Step]) -> list[_Step]:
    """Return the program for one call, its number being loaded."""
    return [(_EQUAL, 0, len(then), number), *then]


def _either(argument: int, values: Iterable[int], then: _Step) -> list[_Step]:
    """Return the program for an argument with one of these values."""
    return [_load_argument(argument), *(step for value in values for step in ((_EQUAL, 0, 1, value), then))]


def _load(at: int) -> _Step:
    return _LOAD, 0, 0, at


def _load_argument(index: int, half: int = 0) -> _Step:
    return _load(_ARGUMENTS + 8 * index + half)


def _fail(error: int) -> _Step:
    return _RETURN, 0, 0, _FAIL | error


def _refuse() -> _Step:
    return _fail(errno.EPERM)


def _allow() -> _Step:
    return _RETURN, 0, 0, _ALLOW
