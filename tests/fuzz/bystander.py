"""A well-behaved client: it infers continuously, and checks every number and its own memory.

`python -m tests.fuzz.bystander SOCKET XML PARENT` prints a JSON line after its first inference, then one for
each line of its input, and ends with it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from softnpu.driver import Driver, ZeError
from softnpu.emulator.common import linux
from tests.support.models import on_cpu
from tests.support.waiting import wait_readable
from tests.support.work import Loaded, same

_KINDS = 8
_PAUSE_S = 0.004
_HEAR_S = 60.0


def main(socket: str, xml: str, parent: str) -> None:
    """Work until the input ends."""
    linux.die_with_parent(int(parent))
    chance = np.random.default_rng(5)
    images = [chance.random((1, 1, 8, 8), dtype=np.float32) for _ in range(_KINDS)]
    expected = [on_cpu(Path(xml), image) for image in images]
    count, errors, longest, total = 0, [], 0.0, 0.0
    with Driver.open(Path(socket)) as driver:
        context = driver.devices[0].create_context()
        loaded, queue = Loaded(context, Path(xml)), context.create_command_queue()
        pattern = context.alloc_host(1 << 16)
        written = chance.integers(0, 256, 1 << 16, dtype=np.uint8)
        pattern.view(np.uint8)[:] = written
        loaded.infer(queue, images[0])
        print(json.dumps({"ready": True}), flush=True)
        while True:
            start = time.monotonic()
            try:
                if not same(loaded.infer(queue, images[count % _KINDS]), expected[count % _KINDS]):
                    errors.append(f"inference {count}: wrong numbers")
            except ZeError as error:
                errors.append(f"inference {count}: {error}")
            if count % 16 == 0 and not np.array_equal(pattern.view(np.uint8), written):
                errors.append(f"inference {count}: its memory was changed")
            took = time.monotonic() - start
            longest, total, count = max(longest, took), total + took, count + 1
            if len(errors) > 10:
                errors = errors[:10]
            if select.select([sys.stdin], [], [], _PAUSE_S)[0]:
                if not sys.stdin.readline():
                    return
                said = {
                    "count": count,
                    "errors": errors,
                    "longest_ms": longest * 1e3,
                    "mean_ms": total / count * 1e3,
                }
                print(json.dumps(said), flush=True)
                longest = 0.0


class Bystander:
    """The running program, and its observations."""

    def __init__(self, socket: Path, xml: Path, parent: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.bystander", str(socket), str(xml), str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.longest_ms = 0.0
        self._hear()

    def ask(self) -> dict[str, Any]:
        """Return counts so far, and the longest time since the last question."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        said = self._hear()
        self.longest_ms = max(self.longest_ms, said["longest_ms"])
        return said

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert wait_readable(self._process.stdout.fileno(), _HEAR_S), "the bystander got no further"
        line = self._process.stdout.readline()
        assert line, f"the bystander ended with {self._process.wait(10)}"
        said: dict[str, Any] = json.loads(line)
        return said


if __name__ == "__main__":
    main(*sys.argv[1:])
