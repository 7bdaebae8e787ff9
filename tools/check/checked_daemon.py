"""A private daemon whose programs are checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softnpu.tools.shared.failures import UsageError

if TYPE_CHECKING:
    from softnpu.tools.shared.private_daemon import PrivateDaemon


def new_folder(path: Path) -> Path:
    """Return the full path of a folder for the notes of a daemon; make it unless it exists, and is empty."""
    folder = path.absolute()
    folder.mkdir(mode=0o700, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(
            f"--check {path}", found="files in it", expected="a new or an empty folder for each daemon"
        )
    return folder


@contextmanager
def checked_daemon(notes: Path, **settings: Any) -> Iterator[PrivateDaemon]:
    """Yield a daemon with these `DaemonSettings`; it and all its programs write notes into a folder."""
    from softnpu.emulator.interface.environment import ENV_CHECK
    from softnpu.tools.shared.private_daemon import private_daemon

    os.environ[ENV_CHECK] = str(notes)
    try:
        with private_daemon(**settings) as daemon:
            # not for daemons that programs start: numbers of sessions mean something in one daemon
            os.environ.pop(ENV_CHECK, None)
            yield daemon
    finally:
        os.environ.pop(ENV_CHECK, None)
