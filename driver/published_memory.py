"""Device memory under a POSIX name, for programs without softnpu."""

from __future__ import annotations

import weakref

from softnpu.driver.block import Block
from softnpu.driver.connection import Connection
from softnpu.driver.errors import check_type, error, invalid_argument
from softnpu.driver.handle import Handle
from softnpu.driver.memory import Allocation
from softnpu.driver.published_names import published
from softnpu.driver.shared_memory import check_name, failed
from softnpu.emulator.interface.result import ZeResult


class PublishedMemory(Allocation):
    """Memory from `Context.publish_shared_memory`, whose `name` ends with it and with this process."""

    def __init__(
        self, context: Handle, block: Block, identity: int, connection: Connection, name: str, number: int
    ) -> None:
        super().__init__(context, block, "host", identity, connection)
        self.name = name
        self._unlink = weakref.finalize(self, published.drop, number)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._unlink()


def make(call: str, name: str, size: int, mode: int) -> tuple[int, int]:
    """Make named shared memory; return the number of the publication and a new descriptor.

    Raises `ZeError`.
    """
    for kind, value, expected in (("name", name, str), ("size", size, int), ("mode", mode, int)):
        check_type(call, f"shared memory, {kind}", value, expected)
    check_name(call, "shared memory", name)
    subject = f"shared memory {name!r}"
    if not 0 < size < 2**63:
        raise error(
            call, ZeResult.ERROR_UNSUPPORTED_SIZE, subject, found=f"{size} bytes", expected="at least 1"
        )
    if mode & ~0o777 or mode & 0o600 != 0o600:
        expected_mode = "bits of 0o777 with 0o600, which this program needs itself"
        raise invalid_argument(call, subject, found=f"mode {mode:#o}", expected=expected_mode)
    try:
        return published.make(name, size, mode)
    except OSError as failure:
        expected_name = "a name that nobody has, and room for it in /dev/shm"
        raise failed(call, subject, failure, expected_name) from failure
