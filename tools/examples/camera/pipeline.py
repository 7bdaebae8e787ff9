"""Start the three processes, kill them on request, and check for leaks at the end."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import posix_ipc

from softnpu.driver import Context, Driver, name_keeper
from softnpu.tools.demo.digits import model_path
from softnpu.tools.examples.camera import layout

STAGES = ("camera", "inference", "consumer")
SEMAPHORES = ("free", "frames", "inferred")
_PACKAGE = "softnpu.tools.examples.camera"
_STALLED_S = 60.0
_START_S = 60.0
_END_S = 10.0
_PAUSE_S = (0.01, 1.5)


class PipelineError(Exception):
    """Raised for a wrong result, a process that ended by itself, or a stalled pipeline."""


@dataclass
class Report:
    """The summary of a run."""

    frames: int = 0
    seconds: float = 0.0
    copied: int = 0
    killed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    left: list[str] = field(default_factory=list)


class Pipeline:
    """The three processes and their shared names; nothing is left after the block."""

    def __init__(self, folder: Path) -> None:
        self.name = f"/softnpu-camera-{os.getpid()}"
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._camera = _compiled_camera(folder)
        self._expected = folder / "expected"
        self._expected.write_bytes(_expected())

    def __enter__(self) -> Pipeline:
        for suffix in SEMAPHORES:
            posix_ipc.Semaphore(f"{self.name}-{suffix}", posix_ipc.O_CREX, mode=0o600).close()
        self.start("camera")
        memory = Path(f"/dev/shm{self.name}")
        _wait_until(
            lambda: memory.exists() and memory.stat().st_size == layout.FRAMES_SIZE, "memory of the camera"
        )
        self.start("inference")
        self.start("consumer")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stage in list(self._running):
            self.kill(stage)
        for suffix in SEMAPHORES:
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_semaphore(f"{self.name}-{suffix}")
        with contextlib.suppress(posix_ipc.ExistentialError):
            posix_ipc.unlink_shared_memory(self.name)  # the camera was killed: it has no keeper

    def start(self, stage: str) -> None:
        """Start or restart a stage."""
        commands = {
            "camera": self._camera,
            "inference": _python("inference"),
            "consumer": _python("consumer"),
        }
        more = [str(self._expected)] if stage == "consumer" else []
        self._running[stage] = subprocess.Popen(
            [*commands[stage], self.name, *more], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def kill(self, stage: str) -> None:
        """Kill a stage without warning (SIGKILL)."""
        process = self._running.pop(stage)
        process.kill()
        process.wait()

    def check(self) -> None:
        """Raise `PipelineError` if a stage has ended by itself."""
        for stage, process in self._running.items():
            code = process.poll()
            if code is not None:
                raise PipelineError(f"the {stage} has ended with {code}; its reason is above")

    def pids(self) -> dict[str, int]:
        """Return the running processes."""
        return {stage: process.pid for stage, process in self._running.items()}


def run(context: Context, frames: int, seconds: float, kill: bool, seed: int) -> Report:
    """Run until this many frames are consumed, or for this many seconds but at least one frame.

    `kill`: kill stages meanwhile.
    """
    report, dice = Report(), random.Random(seed)
    before = _staged(context)
    begin = moved = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Pipeline(Path(folder)) as pipeline:
        counters = context.open_shared_memory(pipeline.name, 0, layout.FRAMES_AT).view(np.uint64)
        while True:
            now, consumed = time.monotonic(), int(counters[layout.CONSUMED])
            if consumed > report.frames:
                report.frames, moved = consumed, now
            if now - moved > _STALLED_S:
                raise PipelineError(f"no frame for {_STALLED_S:g} s: {_state(counters)}")
            pipeline.check()
            is_over = bool(seconds) and now - begin >= seconds
            if (frames and consumed >= frames) or (is_over and consumed):
                break
            if kill and not is_over:
                time.sleep(dice.uniform(*_PAUSE_S))
                stage = dice.choice(STAGES)
                pipeline.check()
                pipeline.kill(stage)
                report.killed[stage] += 1
                pipeline.start(stage)
            else:
                time.sleep(_PAUSE_S[0])
        report.seconds = time.monotonic() - begin
        name = pipeline.name
        del counters
    report.copied = _staged(context) - before
    report.left = _left(name)
    return report


def _state(counters: npt.NDArray[np.uint64]) -> str:
    written, inferred, consumed = (
        int(counters[at]) for at in (layout.WRITTEN, layout.INFERRED, layout.CONSUMED)
    )
    return f"{written} written, {inferred} inferred, {consumed} consumed"


def _left(name: str) -> list[str]:
    """Return the names and processes that remain after everything about to end has ended."""
    with contextlib.suppress(PipelineError):
        _wait_until(lambda: not list(_leftovers(name)), "the end of all", _END_S)
    return list(_leftovers(name))


def _leftovers(name: str) -> Iterator[str]:
    for entry in os.listdir("/dev/shm"):
        if name[1:] in entry:
            yield f"/dev/shm/{entry}"
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if name.encode() in words or (name_keeper.__file__.encode() in words and _is_orphan(words)):
            yield f"process {entry}"


def _is_orphan(words: list[bytes]) -> bool:
    """Return whether it is a keeper of names whose program has ended."""
    return not Path(f"/proc/{words[-2].decode()}").exists()


def _staged(context: Context) -> int:
    return sum(engine.staged_bytes for engine in context.device.driver.status().engines)


def _expected() -> bytes:
    """Return the results for all variants of a frame, as computed by OpenVINO's CPU device."""
    import openvino as ov

    compiled = ov.Core().compile_model(model_path(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    frames = [np.array(layout.pixels(variant), np.float32) for variant in range(layout.VARIANTS)]
    return b"".join(compiled([frame.reshape(layout.SHAPE)])[0].tobytes() for frame in frames)


def _compiled_camera(folder: Path) -> list[str]:
    """Return the command of the camera: compiled from C, or Python without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return _python("camera")
    made = folder / "camera"
    source = Path(__file__).with_name("camera.c")
    subprocess.run([compiler, "-O2", str(source), "-o", str(made), "-lrt", "-pthread"], check=True)
    return [str(made)]


def _python(module: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"{_PACKAGE}.{module}"]


def _wait_until(is_so: Callable[[], bool], what: str, within_s: float = _START_S) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > end:
            raise PipelineError(f"not within {within_s:g} s: {what}")
        time.sleep(0.01)


def show(report: Report) -> int:
    """Print a report; return 1 if something is left behind."""
    print(f"{report.frames} frames, every result equal to OpenVINO's CPU device, bit by bit")
    print(f"{report.copied} bytes copied")
    if any(report.killed.values()):
        print("killed: " + ", ".join(f"{stage} {times}" for stage, times in report.killed.items()))
    print(f"left behind: {', '.join(report.left) or 'nothing'}")
    return 1 if report.left or report.copied else 0


def main(frames: int, seconds: float, kill: bool, seed: int) -> int:
    """Run once and print the report."""
    with Driver.open() as driver, driver.devices[0].create_context() as context:
        return show(run(context, 0 if seconds else frames, seconds, kill, seed))
