"""The example of the asynchronous queue runs as it is written, and is right."""

from __future__ import annotations

import os
import subprocess
import sys

from softnpu.tools.examples import async_queue
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

_MODULE = "softnpu.tools.examples.async_queue"


def test_every_image_is_classified_by_callbacks_as_one_after_the_other(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", _MODULE],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines() == [
        "359 images, 8 requests",
        "callbacks: 359, all in one thread besides this one: True",
        "right: 355 of 359",
        "the same as one after the other: True",
    ]
    assert daemon.engine().inferences == 2 * 359
    wait_until(lambda: daemon.memory_used() == 0, what="memory given back")


def test_its_docstring_says_how_to_run_it() -> None:
    assert async_queue.__doc__ is not None
    assert f"python -m {_MODULE}" in async_queue.__doc__
