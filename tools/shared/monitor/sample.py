"""One look at a daemon, and the connection that polls it across daemon restarts."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from softnpu.tools.shared.daemon_connection import connect
from softnpu.tools.shared.failures import ToolError

if TYPE_CHECKING:
    from softnpu.driver import Driver
    from softnpu.emulator.interface.messages import (
        CompilationActivity,
        Histogram,
        ModelActivity,
        SessionActivity,
        StatusAnswer,
    )


@dataclass(frozen=True)
class Sample:
    """A daemon's report at one moment. `at`: by `time.monotonic`."""

    at: float
    status: StatusAnswer
    sessions: tuple[SessionActivity, ...]
    models: tuple[ModelActivity, ...]
    compilations: tuple[CompilationActivity, ...]
    compilation_count: int
    histograms: tuple[Histogram, ...]

    @classmethod
    def take(cls, driver: Driver) -> Sample:
        """Ask the daemon behind a connection."""
        parts = driver.activity()
        return cls(
            at=time.monotonic(),
            status=driver.status(),
            sessions=tuple(session for part in parts for session in part.sessions),
            models=tuple(model for part in parts for model in part.models),
            compilations=parts[-1].compilations,
            compilation_count=parts[-1].compilation_count,
            histograms=parts[0].histograms,
        )


class Monitor:
    """Polls the daemon at a socket; finds the next one when it ends. It opens no session."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()
        self._driver: Driver | None = None

    def poll(self) -> Sample | Exception:
        """Return the daemon's report, or why there is none."""
        from softnpu.driver import ZeError

        try:
            if self._driver is None:
                self._driver = self._stack.enter_context(connect(self.path))
            return Sample.take(self._driver)
        except (ToolError, ZeError, OSError) as error:
            self.close()
            return error

    def close(self) -> None:
        """Close the connection; `poll` opens another one."""
        self._driver = None
        self._stack.close()
