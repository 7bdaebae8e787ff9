"""A command's daemon: its socket, and a connection without a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from softnpu.tools.shared import completion
from softnpu.tools.shared.failures import ToolError

if TYPE_CHECKING:
    from softnpu.driver import Driver

_ANSWER_S: Final = 5.0

SocketOption = Annotated[
    Path | None,
    typer.Option("--socket", help="Control socket; default: SOFTNPU_SOCKET, else this user's own."),
]
PlatformOption = Annotated[
    list[str] | None,
    typer.Option(
        autocompletion=completion.platforms,
        help="Platform of a device: 3720, 4000 (default), 5010, 5020 or a codename (lunar-lake). "
        "Repeat for more devices.",
    ),
]


class NoDaemonError(ToolError):
    """No daemon runs there."""


class SilentDaemonError(ToolError):
    """A daemon accepts connections but does not answer: it hangs, or was stopped."""


class OtherVersionError(ToolError):
    """A daemon speaks another version of the firmware interface."""


def socket_path(socket: Path | None) -> Path:
    """Return the given socket, or this user's own."""
    from softnpu.emulator.interface.endpoint import default_socket

    return default_socket() if socket is None else socket.absolute()


@contextmanager
def connect(path: Path) -> Iterator[Driver]:
    """Yield a monitor's connection to the daemon at `path`.

    Raise `NoDaemonError`, `SilentDaemonError` and `OtherVersionError`.
    """
    from softnpu.driver import Driver, ZeError, ZeResult
    from softnpu.driver.errors import NoAnswerError
    from softnpu.emulator.interface import endpoint

    try:
        with Driver.open(path, autostart=False, role="monitor", answer_s=_ANSWER_S) as driver:
            yield driver
    except ZeError as error:
        info, record = error.info, endpoint.read_record(path)
        process = "" if record is None else f" (pid {record.pid})"
        if isinstance(error, NoAnswerError):
            raise SilentDaemonError(
                f"{info.object}{process}",
                found=info.found,
                expected="a daemon that answers",
                hint="let it go on (kill -CONT), or kill it with 'softnpu stop --force'",
            ) from error
        if error.result == ZeResult.ERROR_UNSUPPORTED_VERSION:
            raise OtherVersionError(
                f"daemon at {path}{process}",
                found=info.found,
                expected=info.expected,
                hint="end it with 'softnpu stop'; the next program starts one of this version",
            ) from error
        # a running daemon that refuses this user has its own remedy
        if error.result == ZeResult.ERROR_UNINITIALIZED and not isinstance(error.__cause__, OSError):
            raise NoDaemonError(
                info.object, found=info.found, expected="a running daemon",
                hint="start one with 'softnpu daemon'",
            ) from error  # fmt: skip
        raise
