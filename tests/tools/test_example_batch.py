"""The example of batches runs as it is written, and its numbers are right."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.daemon import Daemon


def test_the_example_shows_who_splits_and_that_the_numbers_are_right(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "softnpu.tools.examples.batch"],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
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
    assert daemon.engine().inferences == 1 + 5 + 64 + 1
