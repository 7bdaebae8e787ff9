"""A well-behaved client: it infers continuously, and checks every number and its own memory."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from softnpu.driver import Driver, ZeError
from tests.support.client import ClientProcess
from tests.support.models import on_cpu
from tests.support.work import Loaded, same

_KINDS = 8
_PAUSE_S = 0.004
_HEAR_S = 60.0
_PROGRAM = f"import {__name__} as bystander; bystander.work(given, say, hear)"


def work(given: dict[str, str], say: Callable[[object], None], hear: Callable[[], object]) -> None:
    """Work until killed; speak after the first inference, then whenever there is something to hear."""
    chance, xml = np.random.default_rng(5), Path(given["xml"])
    images = [chance.random((1, 1, 8, 8), dtype=np.float32) for _ in range(_KINDS)]
    expected = [on_cpu(xml, image) for image in images]
    count, longest = 0, 0.0
    errors: list[str] = []
    with Driver.open(Path(given["socket"])) as driver:
        context = driver.devices[0].create_context()
        loaded, queue = Loaded(context, xml), context.create_command_queue()
        pattern = context.alloc_host(1 << 16)
        written = chance.integers(0, 256, 1 << 16, dtype=np.uint8)
        pattern.view(np.uint8)[:] = written
        loaded.infer(queue, images[0])
        say("ready")
        while True:
            start = time.monotonic()
            try:
                if not same(loaded.infer(queue, images[count % _KINDS]), expected[count % _KINDS]):
                    errors.append(f"inference {count}: wrong numbers")
            except ZeError as error:
                errors.append(f"inference {count}: {error}")
            if count % 16 == 0 and not np.array_equal(pattern.view(np.uint8), written):
                errors.append(f"inference {count}: its memory was changed")
            longest, count = max(longest, time.monotonic() - start), count + 1
            if select.select([sys.stdin], [], [], _PAUSE_S)[0]:
                hear()
                say({"count": count, "errors": errors[:10], "longest_ms": longest * 1e3})
                longest = 0.0


class Bystander:
    """The running program, and its observations."""

    def __init__(self, socket: Path, xml: Path) -> None:
        self._client = ClientProcess(_PROGRAM, {"socket": str(socket), "xml": str(xml)}, {})
        self.longest_ms = 0.0
        self._client.hear(_HEAR_S)

    def ask(self) -> dict[str, Any]:
        """Return counts so far, and the longest time since the last question."""
        self._client.tell()
        said: dict[str, Any] = self._client.hear(_HEAR_S)
        self.longest_ms = max(self.longest_ms, said["longest_ms"])
        return said

    def close(self) -> None:
        self._client.kill()
