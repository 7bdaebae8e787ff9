"""The few Linux calls that the standard library does not offer: futex, seals, parent-death signal, peers.

Numbers are those of the kernel's user-space headers for x86-64.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from softnpu.emulator.common import streams

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_PR_SET_PDEATHSIG = 1
_ALL_WAITERS = 0x7FFFFFFF
_NOT_DUMPED = 1 << 34
_KEEP_SIZE = 1
_TMPFS = 0x01021994
_EXT4 = 0xEF53
_LAYERED = (0x794C7630, 0x9123683E)  # overlay, btrfs

SEALS_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""The size can never change again, so a mapping can never fault: what both sides may write."""
SEALS_IMMUTABLE = SEALS_FIXED_SIZE | fcntl.F_SEAL_WRITE
"""Neither size nor content can ever change: blobs and weights that several sessions share."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


# A wait may sleep, so it must give up the interpreter lock (CDLL); a wake never sleeps, and keeping
# the lock (PyDLL) makes it twice as fast. Numbers are C integers to a function without declared arguments: a
# quarter faster than converting them by declaration.
_wait_call = ctypes.CDLL(None, use_errno=True).syscall
_wait_call.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_uint32,
)  # fmt: skip
_wait_call.restype = ctypes.c_long
_wake_call = ctypes.PyDLL(None).syscall
_wake_call.restype = None
_SYS_CLOSE_RANGE, _UNSHARE, _TOP_DESCRIPTOR = 436, 2, 2**32 - 1
_close_range_call = ctypes.CDLL(None, use_errno=True).syscall
_close_range_call.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
_close_range_call.restype = ctypes.c_long
_Pointer = ctypes.c_void_p
_reserve_call = ctypes.CDLL(None, use_errno=True).fallocate
_reserve_call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_map_call = ctypes.CDLL(None, use_errno=True).mmap
_map_call.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_map_call.restype = ctypes.c_void_p
_MAP_FAILED = ctypes.c_void_p(-1).value
_PROT_NONE, _MAP_FIXED = 0, 0x10
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
_unmap_call = ctypes.CDLL(None, use_errno=True).munmap
_unmap_call.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_advise_call = ctypes.CDLL(None, use_errno=True).madvise
_advise_call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_COLLAPSE = 25  # MADV_COLLAPSE, from Linux 6.1 on
_HUGE_PAGE = 2 << 20
_trim_call = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc


def futex_wait(address: int, expected: int, timeout_ns: int) -> None:
    """Sleep while the 32-bit word at `address` equals `expected`, at most `timeout_ns`.

    Returns on a wake, a changed word, a time-out or a signal alike: the caller reads its word again. The word
    may lie in memory that other processes map (the futex is a shared one).
    """
    if timeout_ns <= 0:
        return
    limit = _Timespec(timeout_ns // 1_000_000_000, timeout_ns % 1_000_000_000)
    code = _wait_call(_SYS_FUTEX, address, _FUTEX_WAIT, expected & 0xFFFFFFFF, ctypes.byref(limit), None, 0)
    if code == -1:
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
            raise OSError(error, f"futex wait on {address:#x}: {os.strerror(error)}")


def futex_wake(address: int) -> None:
    """Wake every thread of every process that sleeps on the 32-bit word at `address`."""
    _wake_call(_SYS_FUTEX, _Pointer(address), _FUTEX_WAKE, _ALL_WAITERS)


def is_same_page(address: int, fd: int, offset: int) -> bool:
    """Whether the page mapped at `address` is the one at `offset` of a file; False if that is not known.

    A sleeper on a word of one mapping is woken through the other one only if the page is the same: the kernel
    knows a futex by the page that it lies in. Both only read.
    """
    word = os.pread(fd, 4, offset)  # at `address` it may be cut off
    if len(word) < 4:
        return False
    page = _map_call(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    if page == _MAP_FAILED:
        return False
    limit, slept = _Timespec(1, 0), []

    def sleep() -> None:
        expected = int.from_bytes(word, "little")
        slept.append(_wait_call(_SYS_FUTEX, address, _FUTEX_WAIT, expected, ctypes.byref(limit), None, 0))

    woke = False
    try:
        sleeper = threading.Thread(target=sleep)
        sleeper.start()
        while not slept:
            woke = _wait_call(_SYS_FUTEX, page, _FUTEX_WAKE, 1, None, None, 0) == 1 or woke
            time.sleep(50e-6)
        sleeper.join()
    finally:
        _unmap_call(page, mmap.PAGESIZE)
    return woke and slept == [0]


_fence_lock = threading.Lock()


def memory_fence() -> None:
    """A full barrier: no later load passes an earlier store.

    Releasing a lock executes a locked instruction, which on x86-64 orders all loads and stores. Needed
    wherever one side stores a word and then checks whether the other side sleeps.
    """
    # a waiting acquire could block a signal handler that interrupts it, and a failed attempt only reads
    # the lock: then a lock that nobody else can hold serves instead
    if _fence_lock.acquire(False):
        _fence_lock.release()
    else:
        threading.Lock().acquire(blocking=False)


def leave_descriptors(keep: Sequence[int]) -> None:
    """Give this thread a descriptor table of its own, with the streams and `keep`; raises `OSError`.

    The others are not closed: they were never in it.
    """
    first = streams.LAST + 1
    for fd in (*sorted(keep), _TOP_DESCRIPTOR + 1):
        if first < fd and _close_range_call(_SYS_CLOSE_RANGE, first, fd - 1, _UNSHARE) == -1:
            error = ctypes.get_errno()
            raise OSError(error, f"close_range: {os.strerror(error)}")
        first = fd + 1


def memfd(name: str, size: int = 0) -> int:
    """Return a nameless shared memory file that can be sealed; `size` bytes long, not yet backed by pages."""
    fd = streams.above_streams(os.memfd_create(f"softnpu-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def use_huge_pages(fd: int, size: int) -> None:
    """Have a new memory file of this size filled in huge pages, as far as the kernel provides them.

    Copying 2 GiB into it and reading them then takes half the time. The setting `shmem_enabled` only applies
    to files of programs that do not ask; `deny` forbids it to these as well.
    """
    whole = size - size % _HUGE_PAGE
    if not whole:
        return
    room = _map_call(None, whole + _HUGE_PAGE, _PROT_NONE, _RESERVED, -1, 0)
    if room == _MAP_FAILED:
        return
    try:
        start = -(-room // _HUGE_PAGE) * _HUGE_PAGE
        shared = mmap.PROT_READ | mmap.PROT_WRITE
        if _map_call(start, whole, shared, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) == start:
            for at in range(0, whole, _HUGE_PAGE):
                os.pwrite(fd, b"\0", at)  # what is collapsed has at least one small page
            _advise_call(start, whole, _COLLAPSE)  # ends where no huge page is left
    except OSError:
        pass  # no memory for a page: whoever fills the file is told
    finally:
        _unmap_call(room, whole + _HUGE_PAGE)


def fixed_memfd(name: str, size: int) -> int:
    """Return a memory file that no holder of its descriptor can truncate: its mappings never fault."""
    fd = memfd(name, size)
    try:
        seal(fd, SEALS_FIXED_SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_copy(name: str, *parts: bytes | memoryview) -> int:
    """Return a memory file with this content, sealed against every change."""
    fd = memfd(name)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        seal(fd, SEALS_IMMUTABLE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def seal(fd: int, seals: int) -> None:
    """Add `seals` to a memory file; `OSError` EBUSY if it is still mapped writable and WRITE is asked."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def has_seals(fd: int, seals: int) -> bool:
    """Whether all of `seals` are on `fd`; False for a descriptor that cannot be sealed (a disk file)."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
    except OSError:
        return False


def is_memory_file(fd: int) -> bool:
    """Whether it lies in the memory of this machine: on tmpfs, or a memory file with huge pages.

    The kernel answers that itself, also for a file of a network or FUSE file system that hangs.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


class _FileSystem(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_byte * 512))


_fstatfs = ctypes.CDLL(None, use_errno=True).fstatfs
_fstatfs.argtypes = (ctypes.c_int, ctypes.POINTER(_FileSystem))


def is_shared_memory(fd: int) -> bool:
    """Whether it is a file in the machine's memory: of `shm_open`, or `memfd_create` without huge pages."""
    system = _FileSystem()
    # a number that is none is no descriptor; what has no seals is not asked, as its file system may hang
    if not 0 <= fd < 1 << 31 or not is_memory_file(fd) or _fstatfs(fd, ctypes.byref(system)) != 0:
        return False
    return system.type == _TMPFS and stat.S_ISREG(os.fstat(fd).st_mode)


def is_layered(fd: int) -> bool:
    """Whether its file system has a device for itself and one for each layer or subvolume."""
    system = _FileSystem()
    return _fstatfs(fd, ctypes.byref(system)) == 0 and system.type in _LAYERED


def is_ext4(fd: int) -> bool:
    """Whether it lies on ext4, or an older form of it."""
    system = _FileSystem()
    return _fstatfs(fd, ctypes.byref(system)) == 0 and bool(system.type == _EXT4)


def map_shared(fd: int, size: int, offset: int = 0) -> mmap.mmap:
    """A memory file from `offset` on, readable and writable, shared with every process that maps it."""
    filled = streams.open_streams()  # `mmap` keeps a duplicate of the descriptor
    try:
        mapping = mmap.mmap(
            fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        )
    finally:
        for stream in filled:
            os.close(stream)
    if size >= _NOT_DUMPED:
        mapping.madvise(mmap.MADV_DONTDUMP)  # sparse memory: a core file would be searched for minutes
    return mapping


def reserve_pages(fd: int, offset: int, size: int) -> None:
    """Reserve the pages of a part of a file, which never grows, also if it has become shorter meanwhile."""
    while _reserve_call(fd, _KEEP_SIZE, offset, size) == -1:
        if (error := ctypes.get_errno()) != errno.EINTR:
            raise OSError(error, os.strerror(error))


def can_map_shared(fd: int, offset: int = 0) -> bool:
    """Whether a memory file can be mapped for writing: a page at `offset` is, for a moment, and not touched.

    False if it was opened for reading, is sealed against writing, or has huge pages that this machine lacks.
    """
    try:
        map_shared(fd, mmap.PAGESIZE, offset).close()
    except OSError:
        return False
    return True


def trim_heap() -> None:
    """Give memory that was freed back to the machine, as far as the C library can."""
    if _trim_call is not None:
        _trim_call(ctypes.c_size_t(0))


def address_of(buffer: mmap.mmap | memoryview) -> int:
    """Address of a mapping in this process (needed for futexes); the mapping must stay alive."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def unblock_signals() -> None:
    """Block no signal: a process inherits what the thread that has started it blocks."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when `parent` ends; exits at once if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != parent:
        os._exit(0)


_CREDENTIALS = struct.Struct("3i")


class Credentials(NamedTuple):
    """A process at the other end of a socket, as it connected or listened; pid 0: not of our namespace."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Credentials:
    """Return the peer of a connected Unix socket (`SO_PEERCRED`)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(raw))


_SO_PEERGROUPS = 59  # asm-generic/socket.h; Python has no name for it
_MOST_GROUPS = 65536  # of a process; Python asks for 256
_getsockopt = ctypes.CDLL(None, use_errno=True).getsockopt


def groups_of_peer(connection: socket.socket) -> set[int]:
    """Return all groups of the process at the other end of a Unix socket, as it was when it connected.

    Those of its account are others, and their server may not answer.
    """
    groups = (ctypes.c_uint32 * _MOST_GROUPS)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    at = ctypes.byref(size)
    if _getsockopt(connection.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, groups, at) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"groups of a peer: {os.strerror(error)}")
    return {peer_of(connection).gid, *groups[: size.value // 4]}
