"""`ze_driver_handle_t`: the session of this process with one daemon."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from softnpu.driver import extensions, launch, status_page, tracing
from softnpu.driver.cache_options import cache_limit, cache_options_from_environment, set_cache_limit
from softnpu.driver.connection import ANSWER_S, Connection
from softnpu.driver.device import Device
from softnpu.driver.errors import ZeError, error, invalid_argument, last_description
from softnpu.driver.properties import DriverProperties, ExtensionProperties, IpcProperties
from softnpu.driver.session import Session
from softnpu.emulator.common.model_texts import sendable
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.environment import ENV_LEASE, asked_settings, spin_us
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.emulator.interface.version import INTERFACE_MAJOR, INTERFACE_MINOR, advice

API_VERSION = extensions.version(1, 16)
DRIVER_VERSION = 1_780_000_000
"""A time in seconds, as in the real driver. OpenVINO reports GOPS for drivers built since May 2024."""
NPU_DRIVER_UUID = bytes.fromhex("017de9316b4d4fd4aa9b5bed77fc8e89")


def _traced_methods() -> list[tracing.TracedMethod]:
    from softnpu.driver import traced_calls  # imported late: few processes are traced

    return traced_calls.methods()


tracing.register(_traced_methods)


class Driver(Session):
    """A driver: everything created through it ends with it. Usable from any thread, not after a fork."""

    def __init__(self, connection: Connection, welcome: msg.Welcome) -> None:
        super().__init__(connection, welcome.session)
        self.daemon_pid = welcome.pid
        self.limits = welcome.limits
        self.devices = [Device(self, info) for info in welcome.devices]

    @classmethod
    def open(
        cls,
        path: Path | str | None = None,
        autostart: bool | None = None,
        role: str = "session",
        answer_s: float = ANSWER_S,
        for_program: bool = False,
    ) -> Driver:
        """Connect to the daemon at `path` (default: `SOFTNPU_SOCKET` or the user's own), see `launch`.

        `answer_s` bounds every answer that needs neither compiler nor device. `for_program`: a daemon that
        refuses the sessions of programs in this environment refuses this connection too.

        Raises `ZeError`: ERROR_UNINITIALIZED without a daemon, INSUFFICIENT_PERMISSIONS if it belongs to an
        untrusted user, ERROR_UNSUPPORTED_VERSION if it speaks another interface, INVALID_ARGUMENT if
        `SOFTNPU_SPIN_US` is not a number, NOT_AVAILABLE if a daemon runs with other settings than variables
        ask for.
        """
        call = "zeInitDrivers"
        try:
            spin_us()
        except Refused as refused:
            raise ZeError(call, refused.info) from refused
        launcher = launch.DaemonLauncher(Path(path) if path is not None else None, autostart)
        while True:
            connection = Connection(launcher.connect(), str(launcher.socket_path), answer_s)
            try:
                welcome = greet(call, connection, role, for_program)
                # what a daemon of another user names is not written to
                if role == "session" and welcome.check and launcher.is_own:
                    from softnpu.driver import check_misuse  # imported late: nobody else needs it

                    check_misuse.begin(connection, welcome.session, Path(welcome.check))
                return cls(connection, welcome)
            except BaseException as failure:
                connection.close()
                if not (isinstance(failure, ZeError) and connection.peer_closed and launcher.may_try_again()):
                    raise

    def get_properties(self) -> DriverProperties:
        """`zeDriverGetProperties`."""
        self._check("zeDriverGetProperties")
        return DriverProperties(uuid=NPU_DRIVER_UUID, driver_version=DRIVER_VERSION)

    def get_api_version(self) -> int:
        """`zeDriverGetApiVersion`: major << 16 | minor of the Level Zero specification."""
        self._check("zeDriverGetApiVersion")
        return API_VERSION

    def get_ipc_properties(self) -> IpcProperties:
        """`zeDriverGetIpcProperties`."""
        self._check("zeDriverGetIpcProperties")
        return IpcProperties()

    def get_extension_properties(self) -> list[ExtensionProperties]:
        """`zeDriverGetExtensionProperties`."""
        self._check("zeDriverGetExtensionProperties")
        return extensions.extension_properties()

    def get_extension_function_address(self, name: str) -> extensions.ExtensionTable:
        """`zeDriverGetExtensionFunctionAddress`. Raises INVALID_ARGUMENT for an unknown name."""
        self._check("zeDriverGetExtensionFunctionAddress")
        return extensions.function_address(name)

    def get_last_error_description(self) -> str:
        """`zeDriverGetLastErrorDescription`: the last `ZeError` of the calling thread, empty if none."""
        self._check("zeDriverGetLastErrorDescription")
        return last_description()

    def get_extension(self, name: str) -> extensions.ExtensionTable:
        """`pfnGetExtension` of the driver extension: as `get_extension_function_address`."""
        self._check("pfnGetExtension")
        return extensions.function_address(name)

    def set_disk_cache_size(self, size: int) -> None:
        """`zexDiskCacheSetSize`: set this process's limit in bytes of the cache of compiled models.

        It overrides `ZE_INTEL_NPU_CACHE_SIZE` until that variable changes.
        """
        call = "zexDiskCacheSetSize"
        self._check(call)
        if not 0 <= size < 2**64:
            raise invalid_argument(call, "disk cache", found=f"{size} bytes", expected="0 to 2^64 - 1")
        set_cache_limit(os.environ, size)

    def get_disk_cache_size(self) -> int:
        """`zexDiskCacheGetSize`: the limit in bytes of the cache of compiled models."""
        self._check("zexDiskCacheGetSize")
        return cache_limit(os.environ)

    def get_disk_cache_directory(self) -> str:
        """`zexDiskCacheGetDirectory`: the cache directory of compiled models; empty without a cache."""
        self._check("zexDiskCacheGetDirectory")
        options = cache_options_from_environment(os.environ)
        return "" if options is None else options.directory

    def stop_daemon(self) -> None:
        """Stop the daemon, which ends every session."""
        self._check("stop")
        self._connection.request("stop", msg.Stop(), msg.Ok)


def greet(call: str, connection: Connection, role: str, for_program: bool = False) -> msg.Welcome:
    """Make the handshake of a new connection; a session presents the token of its lease, and its settings."""
    is_session = role == "session"
    token = os.environ.get(ENV_LEASE, "") if is_session else ""
    settings = asked_settings(os.environ) if is_session or for_program else ()
    hello = msg.Hello(
        major=INTERFACE_MAJOR,
        minor=INTERFACE_MINOR,
        client=_program_name(),
        role=role,
        lease=sendable(token),
        settings=tuple(sendable(setting) for setting in settings),
        # an older daemon would expose all of its devices, and compare nothing
        must=(*(("lease",) if token else ()), *(("settings",) if settings else ())),
    )
    welcome, fds = connection.request(call, hello, msg.Welcome)
    if fds and role == "session":
        page = status_page.mapped(fds.pop(0))
        if page is not None:
            connection.watch_life(page, welcome.session)
            tracing.watch(connection, page.trace)
        connection.check(call)  # joins the running trace
    for fd in fds:
        os.close(fd)
    if welcome.major != INTERFACE_MAJOR:
        raise error(
            call,
            ZeResult.ERROR_UNSUPPORTED_VERSION,
            "firmware interface",
            found=f"the daemon (pid {welcome.pid}) speaks {welcome.major}.{welcome.minor}",
            expected=f"{INTERFACE_MAJOR}.x",
            hint=advice(welcome.major, INTERFACE_MAJOR),
        )
    return welcome


def _program_name() -> str:
    return sendable(Path(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable).name[:64])
