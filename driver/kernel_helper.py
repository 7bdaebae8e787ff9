"""Announce a process of this program that runs a kernel for the device."""

from __future__ import annotations

from softnpu.driver.context_base import ContextBase
from softnpu.emulator.interface import messages as msg


def open_helper(context: ContextBase) -> tuple[str, int]:
    """Return the helper's name, and the socket through which it gets channels to engines.

    The socket ends with the context. Raises `ZeError`.
    """
    call = "kernel helper"
    context._check(call)
    request = msg.KernelHelperOpen(context=context.handle)
    opened, fds = context._connection.request(call, request, msg.KernelHelperOpened)
    (fd,) = fds
    return opened.helper, fd
