"""A lease: devices of a daemon taken by this process, and the sessions that may see them."""

from __future__ import annotations

import os
from pathlib import Path

from softnpu.driver.connection import Connection
from softnpu.driver.driver import greet
from softnpu.driver.handle import Handle
from softnpu.driver.launch import DaemonLauncher
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.environment import ENV_LEASE, ENV_SOCKET
from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE


class Lease(Handle):
    """Devices of a daemon started with `--leased-only`; returned on close or death of the process.

    A program with the variables of `environment` sees exactly these devices, numbered from 0. When the lease
    ends, its sessions get DEVICE_LOST.
    """

    def __init__(self, connection: Connection, socket: Path, answer: msg.Leased) -> None:
        self._connection = connection
        self.socket = socket
        self.token = answer.token
        self.devices = answer.devices
        """Their numbers in the daemon."""
        self._register(None, connection, connection.close)

    @classmethod
    def take(
        cls, path: Path | str | None = None, *, count: int = 1, platform: str = "", share: int = WHOLE_DEVICE
    ) -> Lease:
        """Take `count` devices (of `platform`) of the daemon at `path`, without starting one.

        `share`: thousandths of each device; leases of less than 1000 may share a device.

        Raises `ZeError`: NOT_AVAILABLE while others hold them, INVALID_ARGUMENT when there are fewer devices,
        UNSUPPORTED_FEATURE when the daemon does not lease, UNINITIALIZED without a daemon.
        """
        call = "lease"
        launcher = DaemonLauncher(Path(path) if path is not None else None, autostart=False)
        connection = Connection(launcher.connect(), str(launcher.socket_path))
        try:
            greet(call, connection, msg.Role.LEASE.value)
            request = msg.LeaseTake(count=count, platform=platform, share=share)
            answer, _ = connection.request(call, request, msg.Leased)
            return cls(connection, launcher.socket_path, answer)
        except BaseException:
            connection.close()
            raise

    @property
    def lost(self) -> bool:
        """Whether the daemon is gone, and the lease with it."""
        return self._connection.is_lost()

    def environment(self) -> dict[str, str]:
        """Return the variables with which any program sees the devices of the lease."""
        return {ENV_SOCKET: os.fspath(self.socket), ENV_LEASE: self.token}
