"""Descriptors that are closed when nobody holds them: what waits to be sent needs none of its own.

The last ones that the daemon may have are kept for engines and connections.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence

from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.supervisor.undoing import undoing

_KEPT_FREE, _KEPT_PART = 64, 8


def check_left(fd: int) -> None:
    """Raise `OSError` if a descriptor that a client is to have is one of the last."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # the kernel gives the lowest number that is free
    if fd >= soft - min(_KEPT_FREE, soft // _KEPT_PART):
        raise OSError(errno.EMFILE, "the descriptors left are kept for engines and connections")


class HeldDescriptor(int):
    """A reference-counted descriptor; its creator is the first holder."""

    _holders = 1

    def hold(self) -> HeldDescriptor:
        """Add a holder."""
        self._holders += 1
        return self

    def release(self) -> bool:
        """Remove a holder; return whether it was the last, who has to close it."""
        self._holders -= 1
        return not self._holders

    def close(self) -> None:
        """Remove a holder, and close it after the last one."""
        if self.release():
            os.close(self)


NO_DESCRIPTOR = HeldDescriptor(-1)


def hold(fds: Sequence[int]) -> list[int]:
    """Hold all of them, duplicating plain descriptors, or raise `OSError` and hold none."""
    held: list[int] = []
    with undoing() as undo:
        undo.callback(let_go, held)
        for fd in fds:
            held.append(fd.hold() if isinstance(fd, HeldDescriptor) else os.dup(fd))
    return held


def let_go(fds: list[int]) -> None:
    """Release all, and clear the list."""
    close_untrusted([fd for fd in fds if not isinstance(fd, HeldDescriptor) or fd.release()])
    fds.clear()
