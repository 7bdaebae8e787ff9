"""A machine as a farm node: its daemon, and the `ray start` that offers its devices."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_SOCKET
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.farm.keeper import DaemonKeeper
from softnpu.farm.resources import resources_of
from softnpu.tools.farm.monitor import without_ray
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.groups import INTERRUPTED

_RAY_END_S: Final = 30.0
_INTERRUPTED_S: Final = 3.0
"""Ray's own processes end with the killed one."""
_DAEMON_S: Final = 1.5
"""Of the daemon after Ctrl-C: both together are less than five seconds."""
_NICENESS: Final = "RAY_worker_niceness"
"""Ray runs workers at niceness 15 above the daemon that they feed: on a busy machine it waits for them."""


@dataclass(frozen=True)
class Node:
    """This machine's offer. `address`: the cluster to join; empty for the first node."""

    socket: Path
    platforms: tuple[str, ...]
    address: str = ""
    ray_options: tuple[str, ...] = ()

    @property
    def settings(self) -> DaemonSettings:
        return DaemonSettings(socket=str(self.socket), devices=self.platforms, leased_only=True)

    def environment(self) -> dict[str, str]:
        """Return variables that this node's Ray workers need in addition to inherited ones."""
        return {
            ENV_SOCKET: str(self.socket),
            ENV_AUTOSTART: "0",
            _NICENESS: os.environ.get(_NICENESS, "0"),
        }

    def ray_command(self) -> list[str]:
        """Return the `ray start` that offers the devices."""
        where = ["--address", self.address] if self.address else ["--head"]
        return [
            "ray",
            "start",
            *where,
            "--resources",
            json.dumps(resources_of(self.platforms)),
            *self.ray_options,
        ]

    def daemon_command(self) -> list[str]:
        """Return the command of the daemon with the devices."""
        platforms = [word for platform in self.platforms for word in ("--platform", platform)]
        return ["softnpu", "daemon", "--leased-only", *platforms, "--socket", str(self.socket)]

    def found(self) -> Node | None:
        """Return the node with the devices of the daemon running at the socket; None if none runs.

        Raise `ToolError` for a daemon with other devices than requested, or without leases.
        """
        from softnpu.driver import Driver, ZeError, ZeResult

        if not endpoint.accepts(self.socket):
            return None
        with Driver.open(self.socket, autostart=False, role="monitor") as driver:
            platforms = tuple(device.info.platform for device in driver.devices)
        if self.platforms and platforms != self.platforms:
            raise ToolError(
                f"daemon at {self.socket}",
                found=f"its devices are {', '.join(platforms)}",
                expected=", ".join(self.platforms),
                hint="end it with 'softnpu stop', or choose another socket with --socket",
            )
        try:
            Driver.open(self.socket, autostart=False, role="lease").destroy()
        except ZeError as error:
            if error.result != ZeResult.ERROR_UNSUPPORTED_FEATURE:
                raise
            raise ToolError(
                f"daemon at {self.socket}",
                found="every program sees its devices",
                expected="a daemon for leases (softnpu daemon --leased-only)",
                hint="end it with 'softnpu stop', or choose another socket with --socket",
            ) from error
        return Node(self.socket, platforms, self.address, self.ray_options)

    def run(self, keep_daemon: bool) -> int:
        """Run Ray's node, and with `keep_daemon` a daemon beside it, until Ray ends; return its exit code.

        After Ctrl-C that is 130. Both end with this process, however it ends. A dead daemon is restarted.
        """
        command = self.ray_command()
        if shutil.which(command[0]) is None and not Path(sys.executable).with_name("ray").exists():
            raise without_ray()
        command.append("--block")
        if not keep_daemon:
            return self._run_ray(command, None)
        keeper = DaemonKeeper(self.settings)
        try:
            code = self._run_ray(command, keeper)
            if code == INTERRUPTED:
                keeper.close(_DAEMON_S)
            return code
        finally:
            keeper.close()

    def _run_ray(self, command: list[str], keeper: DaemonKeeper | None) -> int:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        ray = subprocess.Popen(
            [sys.executable, "-P", "-m", "softnpu.tools.farm.dying", str(os.getpid()), *command],
            env={**os.environ, **self.environment(), "PATH": path},
        )

        interrupted = False

        def end(*_: object) -> None:
            ray.terminate()

        def interrupt(*_: object) -> None:
            nonlocal interrupted
            interrupted = True
            ray.terminate()
            signal.signal(signal.SIGALRM, lambda *_: ray.kill())
            signal.setitimer(signal.ITIMER_REAL, _INTERRUPTED_S)

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, interrupt)
        fd = os.pidfd_open(ray.pid)
        try:
            if keeper is not None:
                keeper.keep(fd)
            code = ray.wait()
            return INTERRUPTED if interrupted else code
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.close(fd)
            if ray.poll() is None:
                ray.terminate()
                try:
                    ray.wait(_RAY_END_S)
                except subprocess.TimeoutExpired:
                    ray.kill()
