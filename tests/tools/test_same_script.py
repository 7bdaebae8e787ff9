"""One application for `openvino` on a CPU and `softnpu.plugin` on the NPU: the same words and numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_MODULE = "softnpu.tools.examples.same_script"
_WAYS = {"CPU": "openvino", "NPU": "softnpu.plugin"}


def test_words_and_numbers_are_identical_bit_for_bit(cli_daemon: Daemon, private_dir: Path) -> None:
    words, numbers = {}, {}
    for device, module in _WAYS.items():
        path = private_dir / f"{device}.npz"
        options = ["--with", module, "--device", device, "--save", str(path)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", _MODULE, *options],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        with np.load(path) as found:
            words[device], numbers[device] = done.stdout, dict(found)
    wait_until(lambda: cli_daemon.memory_used() == 0, what="memory given back")
    assert words["NPU"] == words["CPU"]
    assert "of 64 digits recognised" in words["NPU"]
    ours, theirs = numbers["NPU"], numbers["CPU"]
    assert list(ours) == list(theirs)
    assert len(ours) >= 14
    assert [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()] == []
    assert [name for name in ours if ours[name].dtype != theirs[name].dtype] == []
    assert all(np.abs(array).sum() > 0 for array in ours.values())


def test_only_import_and_device_differ() -> None:
    source = (_ROOT / "tools" / "examples" / "same_script.py").read_text()
    program = source[source.index("class Application") : source.index("def main")]
    assert re.findall(r"\b(openvino|softnpu|NPU|CPU)\b", program) == []
