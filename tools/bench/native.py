"""`bench native`: an empty command list from C++, through native driver, ring and engine, and back.

The program is `round_trip.cpp` beside this file, built with this machine's compiler against the native
driver's own loader. It takes turns with a pair of POSIX semaphores between two Python processes. Both callers
are pinned to one core, the engine and the answering process to another (or to the same one).
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from softnpu.driver import Driver, native_library
from softnpu.driver.native_library import NativeLibrary
from softnpu.emulator.interface.environment import DEFAULT_SPIN_US, ENV_AUTOSTART, ENV_SPIN_US
from softnpu.tools.bench.echo import EchoProcess
from softnpu.tools.bench.result import Measurement, compared
from softnpu.tools.bench.rounds import interleave, median, pinned, split
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.private_daemon import private_daemon

BENCH = "native"
PEER = "semaphore pair"
SOURCE = Path(__file__).with_name("round_trip.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_ROUND = 100
_ANSWER_S = 60.0
_END_S = 10.0
_BUILD_S = 300.0


def run(trips: int) -> Iterator[Measurement]:
    """Yield the figures of about `trips` round trips on either side of every comparison."""
    library, compiler = native_library.find(), find_compiler()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder:
        program = build(library, compiler, Path(folder))
        measure = partial(_measure, library, program, trips)
        if len(cores) > 1:
            yield measure("round trip asleep, two cores", cores[0], cores[1], 0)
            yield measure("round trip with spin, two cores", cores[0], cores[1], DEFAULT_SPIN_US)
        yield measure("round trip asleep, one core", cores[0], cores[0], 0)


def find_compiler() -> str:
    """Return the C++ compiler: `CXX` or the usual one."""
    chosen = os.environ.get("CXX", "")
    for name in (chosen,) if chosen else _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise ToolError(
        "C++ compiler",
        found=f"no {chosen}, which CXX names" if chosen else f"none of {', '.join(_COMPILERS)}",
        expected="one that builds the program of this benchmark",
        hint="install g++",
    )


def build(library: NativeLibrary, compiler: str, folder: Path) -> Path:
    """Build the program, linked against this native driver's loader."""
    made = folder / SOURCE.stem
    line = [compiler, "-std=c++17", "-O2", str(SOURCE), "-o", str(made), str(library.loader)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=_BUILD_S)
    except subprocess.TimeoutExpired:
        raise ToolError(
            SOURCE.name, found=f"{compiler} did not end within {_BUILD_S:g} s", expected="a program"
        ) from None
    if done.returncode != 0:
        found = f"{compiler} ended with code {done.returncode}: {_first_line(done.stderr)}"
        raise ToolError(SOURCE.name, found=found, expected="a program")
    return made


class RoundTrips:
    """The program, connected to the daemon at `socket`; between rounds it sleeps.

    `spin_us` bounds its busy wait for the device.
    """

    def __init__(self, library: NativeLibrary, program: Path, socket: Path, spin_us: int) -> None:
        environment = library.environment(socket, os.environ)
        environment |= {ENV_SPIN_US: str(spin_us), ENV_AUTOSTART: "0"}
        self._process = subprocess.Popen(
            [program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.pid = self._process.pid

    def pin(self, core: int) -> None:
        """Pin its only thread to this core."""
        try:
            os.sched_setaffinity(self._process.pid, {core})
        except ProcessLookupError:
            raise self._ended() from None

    def round(self, count: int) -> float:
        """Return median seconds of `count` round trips."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"%d\n" % count)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        if not select.select([process.stdout], [], [], _ANSWER_S)[0]:
            raise ToolError(
                SOURCE.stem, found=f"no answer for {_ANSWER_S:g} s", expected=f"{count} round trips"
            )
        answer = process.stdout.readline().split()
        if not answer:
            raise self._ended()
        return float(answer[0]) / 1e6

    def close(self) -> None:
        """End it."""
        try:
            self._process.communicate(timeout=_END_S)  # it ends by itself at the end of its input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _ended(self) -> ToolError:
        _, output = self._process.communicate(timeout=_END_S)
        found = f"it ended with code {self._process.returncode}: {_first_line(output.decode())}"
        return ToolError(SOURCE.stem, found=found, expected="round trips")

    def __enter__(self) -> RoundTrips:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _measure(
    library: NativeLibrary,
    program: Path,
    trips: int,
    metric: str,
    near: int,
    far: int,
    spin_us: int,
) -> Measurement:
    rounds, count = split(trips, _ROUND)
    with ExitStack() as stack:
        socket = stack.enter_context(private_daemon(spin_us=spin_us)).socket
        status = stack.enter_context(Driver.open(socket, autostart=False)).status()
        os.sched_setaffinity(status.engines[0].engine_pid, {far})
        device = stack.enter_context(RoundTrips(library, program, socket, spin_us))
        # created before pinning: on one core a spin budget gives up at once
        device.round(1)
        device.pin(near)
        peer = stack.enter_context(EchoProcess("semaphore", far))
        stack.enter_context(pinned(near))
        times = interleave(
            {"device": partial(device.round, count), "peer": partial(peer.round, count)}, rounds
        )
    medians = {name: median(values) * 1e6 for name, values in times.items()}
    return compared(BENCH, metric, "us", medians["device"], PEER, medians["peer"])


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "it said nothing")
