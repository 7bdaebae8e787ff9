"""The examples run as written, print the right results, and appear so in level-zero.md."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.driver import Driver
from softnpu.tools.examples.camera import pipeline as camera
from tests.support.daemon import Daemon
from tests.support.leaks import descriptors_of
from tests.support.torch_package import NoTorch, torch_path, with_path
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_PACKAGE = "softnpu.tools.examples"


class Example:
    """One run: its output lines, and what the device did meanwhile."""

    def __init__(self, daemon: Daemon, name: str, environment: dict[str, str] | None = None) -> None:
        before = daemon.engine()
        command = [sys.executable, "-P", "-m", f"{_PACKAGE}.{name}"]
        done = subprocess.run(
            command, env=environment or os.environ, capture_output=True, text=True, timeout=150, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        self.lines = done.stdout.splitlines()
        after = daemon.engine()
        self.inferences = after.inferences - before.inferences
        self.staged_bytes = after.staged_bytes - before.staged_bytes
        wait_until(lambda: daemon.memory_used() == 0, what="memory given back")
        wait_until(lambda: daemon.engine().contexts == 0, what="contexts given back")


def without_figures(line: str) -> str:
    """The line with every number as 0 and blanks collapsed: times differ from run to run."""
    return re.sub(r"\s+", " ", re.sub(r"(0x[\da-f]+|[\d.]+)", "0", line))


def test_hello_npu(cli_daemon: Daemon) -> None:
    example = Example(cli_daemon, "hello_npu")
    lines = example.lines
    assert "submitted: 2 inferences, ended: 0" in lines
    assert "data copied: True, first inference begun: True" in lines
    assert [re.sub(r" \(.*", "", line) for line in lines if line.startswith("image")] == [
        "image 0: a 4",
        "image 1: a 2",
    ]
    assert lines[-1] == "everything is given back"
    assert example.inferences == 2
    first = next(number for number, line in enumerate(lines) if line.startswith("layer "))
    layers = lines[first + 1 : -1]
    assert len(layers) >= 4
    assert [line for line in layers if not re.search(r" (DPU|SW|DMA|NONE) +\d+ us$", line)] == []

    document = (_ROOT / "docs" / "level-zero.md").read_text()
    (shown,) = re.findall(rf"\$ python -m {re.escape(_PACKAGE)}.hello_npu\n(.*?)```", document, re.DOTALL)
    printed, expected = ([without_figures(line) for line in text] for text in (lines, shown.splitlines()))
    # the layers depend on OpenVINO and on the processor
    profile = printed.index("layer type unit time")
    assert printed[: profile + 1] == expected[: profile + 1]
    assert printed[-1] == expected[-1]


def test_async_queue(cli_daemon: Daemon) -> None:
    example = Example(cli_daemon, "async_queue")
    assert example.lines == [
        "359 images, 8 requests",
        "callbacks: 359, all in one thread besides this one: True",
        "right: 355 of 359",
        "the same as one after the other: True",
    ]
    assert example.inferences == 2 * 359


def test_batch(cli_daemon: Daemon) -> None:
    example = Example(cli_daemon, "batch")
    lines = [line.strip() for line in example.lines]
    assert lines[:4] == [
        "NPU_BATCH_MODE=AUTO",
        "split by: PLUGIN",
        "input for you: [?,1,8,8]",
        "input for the device: [1, 1, 8, 8]",
    ]
    for size in (1, 5, 64):
        assert any(line.startswith(f"batch of {size}: result [{size}, 10]") for line in lines)
    assert "input for the device: [64, 1, 8, 8]" in lines
    assert any("batch of 0: input 'image': shape [0, 1, 8, 8]" in line for line in lines)
    assert lines[-1] == "all numbers are those of the CPU"
    assert example.inferences == 1 + 5 + 64 + 1


def test_dynamic_shapes(cli_daemon: Daemon) -> None:
    assert Example(cli_daemon, "dynamic_shapes").lines == [
        "matrix: [1..8,?]",
        "places: [2,?]",
        "matrix 2 x 3: 2 places, result [2, 2]",
        "matrix 8 x 100: 8 places, result [2, 8]",
        "matrix 1 x 1: 1 places, result [2, 1]",
        "matrix 3 x 5, in place: [[1, 4]]",
        "9 rows: input 'matrix': float32[9, 2] given; expected float32[1..8,?]",
    ]


def test_states(cli_daemon: Daemon) -> None:
    example = Example(cli_daemon, "states")
    assert example.lines[0] == "inputs: ['x'] states: <VariableState: 'last' f32[1]>"
    assert [line for line in example.lines if line.endswith("equal, bit by bit")] == [
        "8 chunks, one after the other: equal, bit by bit",
        "another listener begins again: equal, bit by bit",
        "with the other's state it goes on there: equal, bit by bit",
        "after a reset it begins again: equal, bit by bit",
    ]
    assert example.lines[-1] == "6 steps in place: 0 bytes copied, 2 buffers in turn"
    assert example.staged_bytes == 0


def test_weightless(cli_daemon: Daemon) -> None:
    lines = Example(cli_daemon, "weightless").lines
    assert without_figures(lines[0]) == "weights 0 KiB, compiled model 0 KiB"
    assert lines[1].startswith("requires platform=4000;")
    assert lines[2:] == [
        "runs here: True",
        "imported, weights where they were: True",
        "imported, weights moved: True",
        "imported, weights of the model: True",
        "other weights are refused: True",
    ]


def test_deferred_load(daemon: Daemon) -> None:
    lines = Example(daemon, "deferred_load").lines
    assert [without_figures(line) for line in lines[:4]] == [
        "exported 0 MiB",
        "imported in 0 ms, loaded in 0 ms, 0 MiB on the device",
        "first request in 0 ms, of which the load took 0 ms",
        "0 MiB on the device",
    ]
    assert "loaded in 0 ms, 0 MiB" in lines[1]
    assert lines[3:] == [
        "64 MiB on the device",
        "the numbers are right: True",
        "spoiled weights are noticed by the first request: True",
    ]


@pytest.mark.timeout(1200)
def test_torch_module(cli_daemon: Daemon) -> None:
    try:
        path = torch_path()
    except NoTorch as reason:
        pytest.skip(str(reason))
    example = Example(cli_daemon, "torch_module", with_path(path))
    assert [re.sub(r"\d+ (ms|KiB)", r"N \1", line) for line in example.lines] == [
        "compiled <CompiledModule Network(image, scale=1.0), platform 4000> in N ms, loaded in N ms",
        "returns ['features', 'scores'], close to torch: True",
        "the same from device memory: True, bytes copied: 0",
        "saved in one file: N KiB",
        "4 images in a process without torch, close to torch: True",
    ]
    assert example.inferences == 2 + 4


def test_torch_module_without_torch_says_what_to_install() -> None:
    program = (
        "import runpy, sys; sys.modules['torch'] = None;"
        f" runpy.run_module('{_PACKAGE}.torch_module', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "this example needs torch: pip install 'softnpu[torch]'\n"


class TestCamera:
    """A camera in C, and inference and a consumer in plain Python; see `tools/examples/camera`."""

    def test_frames_go_through_three_processes_without_a_copy(self, cli_daemon: Daemon) -> None:
        example = Example(cli_daemon, "camera")
        frames = int(example.lines[0].split()[0])
        assert frames >= 200
        assert example.lines[1:] == ["0 bytes copied", "left behind: nothing"]
        assert example.inferences >= frames
        assert example.staged_bytes == 0

    def test_a_wrong_result_is_found(
        self, cli_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        whole = camera._expected()
        wrong = whole[:7] + bytes([whole[7] ^ 1]) + whole[8:]
        monkeypatch.setattr(camera, "_expected", lambda: wrong)
        with (
            Driver.open(cli_daemon.socket) as driver,
            driver.devices[0].create_context() as context,
            pytest.raises(camera.PipelineError, match="the consumer has ended with 1"),
        ):
            camera.run(context, frames=10, seconds=0, kill=False, seed=1)
        assert "frame 0: " in capfd.readouterr().err

    @pytest.mark.parametrize(
        ("seconds", "seed"),
        [(6, 1), pytest.param(600, None, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
    )
    def test_killed_stages_are_restarted_without_errors_or_leftovers(
        self, cli_daemon: Daemon, seconds: int, seed: int | None
    ) -> None:
        before = descriptors_of(os.getpid())
        engine = cli_daemon.engine().engine_pid
        with Driver.open(cli_daemon.socket) as driver, driver.devices[0].create_context() as context:
            chosen = random.randrange(1 << 32) if seed is None else seed
            report = camera.run(context, frames=0, seconds=seconds, kill=True, seed=chosen)
        print(f"seed {chosen}: {report}")
        assert report.frames > 0
        assert sum(report.killed.values()) > 0
        assert (report.copied, report.left) == (0, [])
        assert descriptors_of(os.getpid()) == before
        assert cli_daemon.engine().engine_pid == engine
        wait_until(lambda: cli_daemon.memory_used() == 0, what="memory given back")
