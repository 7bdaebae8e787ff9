"""The example of a module of torch runs as it is written, and without torch says what it needs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.daemon import Daemon
from tests.support.torch_package import NoTorch, torch_path, with_path
from tests.support.waiting import wait_until

_MODULE = "softnpu.tools.examples.torch_module"


@pytest.mark.timeout(1200)
def test_a_module_is_compiled_saved_and_run_without_torch(daemon: Daemon) -> None:
    try:
        path = torch_path()
    except NoTorch as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-P", "-m", _MODULE],
        env=with_path(path),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = [re.sub(r"\d+ (ms|KiB)", r"N \1", line) for line in done.stdout.splitlines()]
    assert lines == [
        "compiled <CompiledModule Network(image, scale=1.0), platform 4000> in N ms, loaded in N ms",
        "returns ['features', 'scores'], close to torch: True",
        "the same from device memory: True, bytes copied: 0",
        "saved in one file: N KiB",
        "4 images in a process without torch, close to torch: True",
    ]
    assert daemon.engine().inferences == 2 + 4
    wait_until(lambda: daemon.memory_used() == 0, what="memory given back")


def test_without_torch_it_says_what_to_install() -> None:
    program = (
        f"import runpy, sys; sys.modules['torch'] = None; runpy.run_module({_MODULE!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "this example needs torch: pip install 'softnpu[torch]'\n"
