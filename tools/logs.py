"""`softnpu logs`: show the log of a background daemon."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from softnpu.emulator.common.printable import printable
from softnpu.tools.shared.daemon_connection import SocketOption, socket_path
from softnpu.tools.shared.failures import ToolError

_LOOK_S: Final = 0.2


def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is written.")] = False,
    socket: SocketOption = None,
) -> None:
    """Print the log of the daemon, of the last one if none runs."""
    from softnpu.emulator.interface import endpoint

    path = socket_path(socket)
    log = endpoint.log_path(path)
    try:
        text = log.read_bytes()
    except FileNotFoundError:
        raise ToolError(
            f"log {log}",
            found="no such file",
            expected="the log of a daemon in the background",
            hint="one in the foreground logs to its stderr",
        ) from None
    except PermissionError:
        raise ToolError(
            f"log {log}",
            found="no permission",
            expected="the log of a daemon of this user",
            hint="ask the owner of the daemon for its lines",
        ) from None
    older = endpoint.older_log_path(path)
    if text.count(b"\n") < lines and older.exists():
        text = older.read_bytes() + text
    _write(b"".join(text.splitlines(keepends=True)[-lines:] if lines else []))
    if follow:
        for part in _following(log, log.stat().st_size):
            _write(part)


def _write(text: bytes) -> None:
    """Write lines unchanged except for terminal control characters: programs choose names that are logged."""
    lines = text.decode(errors="backslashreplace").split("\n")
    sys.stdout.buffer.write("\n".join(map(printable, lines)).encode())
    sys.stdout.buffer.flush()


def _following(log: Path, position: int) -> Iterator[bytes]:
    """Yield text appended to the file, endlessly; restart at its beginning when it was truncated."""
    with log.open("rb") as file:
        while True:
            size = os.fstat(file.fileno()).st_size
            position = position if position <= size else 0
            file.seek(position)
            if part := file.read():
                position += len(part)
                yield part
            time.sleep(_LOOK_S)  # several processes write: nothing notifies of every line
