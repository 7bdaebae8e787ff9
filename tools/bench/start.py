"""`bench start`: a whole process of one small inference, against the same on OpenVINO's CPU device.

It measures the time from start to end, imports of Python and OpenVINO included: what a user sees, and what
each run costs a test suite. The driver's cache has the model.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from softnpu.driver import Driver, native_library
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.interface.endpoint import lock_path
from softnpu.emulator.interface.environment import ENV_SOCKET
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import interleave, median
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.private_daemon import private_daemon

BENCH: Final = "start"
_PEER: Final = "OpenVINO CPU"
_DEADLINE_S: Final = 120.0
_PAUSE_S: Final = 0.01
_PROGRAM: Final = """
import sys
import numpy as np
{core}
config = {{"INFERENCE_PRECISION_HINT": "f32"}} if sys.argv[2] == "CPU" else {{}}  # the NPU's is f32
compiled = core.compile_model(sys.argv[1], sys.argv[2], config)
inputs = [np.ones(list(port.shape), port.element_type.to_dtype()) for port in compiled.inputs]
results = compiled(inputs)
print([results[port].tobytes().hex() for port in compiled.outputs])
"""
_OPENVINO: Final = _PROGRAM.format(core="import openvino\ncore = openvino.Core()")
_PLUGIN: Final = _PROGRAM.format(core="from softnpu.plugin import Core\ncore = Core()")
_RUN: Final = [sys.executable, "-P", "-c", "from softnpu.tools.start import main; main()", "run", "--"]


def run(model: BenchModel, rounds: int) -> Iterator[Measurement]:
    """Yield medians of `rounds` processes of each kind, which take turns."""
    native_library.find()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-bench-")))
        socket = stack.enter_context(private_daemon()).socket
        programs = _Programs(model, folder)
        openvino = [sys.executable, "-c", _OPENVINO, str(model.path)]
        plugin = [sys.executable, "-c", _PLUGIN, str(model.path), "NPU"]
        sides: dict[str, Callable[[], float]] = {
            _PEER: partial(programs.run, [*openvino, "CPU"], socket),
            "softnpu run, with a daemon": partial(programs.run, [*_RUN, *openvino, "NPU"], socket),
            "softnpu run, without": partial(programs.run_alone, [*_RUN, *openvino, "NPU"]),
            "plugin, with a daemon": partial(programs.run, plugin, socket),
            "plugin, without": partial(programs.run_alone, plugin),
        }
        for side in sides.values():
            side()  # then files are in memory, and the model is in the cache
        times_of = interleave(sides, rounds)
    peer = median(times_of.pop(_PEER)) * 1e3
    for name, times in times_of.items():
        yield compared(BENCH, f"{model.name}: {name}", "ms", median(times) * 1e3, _PEER, peer)
    different = len(programs.outputs) - 1
    yield absolute(BENCH, f"{model.name}: outputs that differ", "outputs", different, exactly=0)


class _Programs:
    """Runs programs to their end; `outputs` has their distinct outputs."""

    def __init__(self, model: BenchModel, folder: Path) -> None:
        if model.shapes:
            raise ToolError(f"model {model.name}", found="open shapes", expected="a model without")
        self._folder = folder
        self._count = 0
        self.outputs: set[str] = set()

    def run(self, command: Sequence[str], socket: Path) -> float:
        """Run a program with the daemon at `socket`, started if there is none; return the seconds taken."""
        start = time.perf_counter()
        done = subprocess.run(
            command,
            env=self._environment(socket),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            reason = ([line for line in done.stderr.splitlines() if line] or ["it died"])[-1]
            raise ToolError("a small program", found=reason, expected="its result")
        self.outputs.add(done.stdout)
        return seconds

    def run_alone(self, command: Sequence[str]) -> float:
        """Run a program without a daemon; afterwards end the one that it starts."""
        self._count += 1
        socket = self._folder / f"{self._count}.sock"
        try:
            return self.run(command, socket)
        finally:
            _end_daemon(socket)

    def _environment(self, socket: Path) -> Mapping[str, str]:
        return {**os.environ, ENV_SOCKET: str(socket), ENV_CACHE_DIR: str(self._folder / "cache")}


def _end_daemon(socket: Path) -> None:
    if not socket.exists():
        return
    with Driver.open(socket, autostart=False, role="monitor") as monitor:
        monitor.stop_daemon()
    end = time.monotonic() + _DEADLINE_S
    while lock_path(socket).exists():
        if time.monotonic() > end:
            raise ToolError(f"daemon at {socket}", found="alive", expected="its end")
        time.sleep(_PAUSE_S)
