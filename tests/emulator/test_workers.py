"""oneTBB's workers sleep while C++ runs short inferences, and the bits stay those of the image."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Context
from softnpu.emulator.engine import native_library, workers
from softnpu.emulator.openvino.c_models import CModel, openvino
from softnpu.emulator.openvino.copies import expected_of, memory_of, outputs_in
from softnpu.emulator.openvino.image import LoadedImage
from tests.support import loaded_images

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no workers")
AFTER, MAIL, MAIL_OF_ONE, SEEN, WITH = 64, 8192, 512, 16, 4096  # as in workers.cpp
_SHORT_NS, _LONG_NS = 20_000, 70_000
_LOOKS = 50
_MANY = 40_000
_BUSY = "import time; end = time.monotonic() + 240\nwhile time.monotonic() < end: pass"
_OTHERS = len(os.sched_getaffinity(0)) - 1
_DEADLINE_S = 30.0


class Workers:
    """The part of the engine's library, in this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        tbb = ctypes.CDLL("libtbb.so.12")  # loaded by OpenVINO
        self._allowed = tbb._ZN3tbb6detail2r127global_control_active_valueEi
        self._allowed.restype = ctypes.c_size_t

    @property
    def asleep(self) -> bool:
        return int(self._allowed(0)) == 1

    def begins(self, image: int = 1) -> None:
        self._library.softnpu_workers_begins(ctypes.c_void_p(image))

    def ran(self, count: int, ns: int = _SHORT_NS, image: int = 1) -> None:
        for _ in range(count):
            self._library.softnpu_workers_ran(ctypes.c_void_p(image), ctypes.c_uint64(ns))

    def put_to_sleep(self, image: int = 1) -> None:
        """Report short inferences until they sleep; one may still be needed for the time before.

        Those that still have mail need CPU time before: a thread takes it in their place.
        """
        done = threading.Event()

        def compute() -> None:
            while not done.is_set():
                pass

        def sleeps() -> bool:
            self.ran(1, image=image)
            return self.asleep

        computing = threading.Thread(target=compute)
        computing.start()
        try:
            _until(sleeps)
        finally:
            done.set()
            computing.join()

    def wake(self) -> None:
        self._library.softnpu_workers_wake()


def _until(is_true: Callable[[], object]) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not is_true():
        assert time.monotonic() < end


@pytest.fixture
def tbb() -> Iterator[Workers]:
    library = native_library.library()
    assert library is not None
    found = Workers(library)
    found.put_to_sleep()  # without mail left
    found.wake()
    yield found
    found.wake()
    assert not found.asleep


def _bits(c_model: CModel, image: LoadedImage, inputs: list[bytes]) -> list[bytes]:
    views = memory_of(image, inputs)
    c_model.infer(c_model.request(views))
    return outputs_in(image, views)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _running() -> list[str]:
    """Return the other threads of this process that run."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        if task.name != str(threading.get_native_id()):
            found.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return [state for state in found if state == "R"]


def test_they_sleep_after_short_inferences_until_a_long_one(tbb: Workers) -> None:
    tbb.ran(AFTER - 1)
    assert not tbb.asleep
    tbb.put_to_sleep()
    tbb.ran(1, _LONG_NS, image=3)
    assert not tbb.asleep
    tbb.ran(2 * AFTER, _LONG_NS, image=3)
    assert not tbb.asleep


def test_they_help_an_image_that_is_slower_without_them_until_it_is_tried_again(tbb: Workers) -> None:
    tbb.put_to_sleep(image=4)
    tbb.ran(SEEN, 2 * _SHORT_NS + 1, image=4)
    assert not tbb.asleep
    tbb.ran(WITH - 1, image=4)
    assert not tbb.asleep
    tbb.put_to_sleep(image=4)


def test_they_sleep_on_after_some_inferences_that_lost_their_core(tbb: Workers) -> None:
    tbb.put_to_sleep(image=7)
    for _ in range(SEEN):
        tbb.ran(1, 50 * _SHORT_NS, image=7)
        tbb.ran(2, image=7)
    assert tbb.asleep


def test_they_empty_their_mailboxes_of_each_image(tbb: Workers) -> None:
    tbb.put_to_sleep(image=5)
    runs = 0
    while tbb.asleep and runs <= MAIL:
        tbb.ran(1, image=5)
        runs += 1
        tbb.begins(6)
        assert tbb.asleep
        tbb.begins(5)
    assert MAIL_OF_ONE // _OTHERS <= runs <= MAIL
    tbb.ran(AFTER + 1, image=5)
    assert not tbb.asleep, "no worker has had the time to read them"
    tbb.put_to_sleep(image=5)
    tbb.begins(5)
    assert tbb.asleep


def test_mail_of_sleeping_workers_does_not_grow_beside_busy_processes(
    tbb: Workers, context: Context, digits: Path
) -> None:
    """An inference leaves a KiB, which nobody took if the workers got no core while they were awake."""
    image, interface = loaded_images.compiled(context, digits), openvino()
    assert interface is not None
    c_model = CModel(interface, image.compiled, image.meta)
    request = c_model.request(memory_of(image, []))
    with ExitStack() as stack:
        for _ in range(4):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
            stack.callback(busy.kill)
        tbb.put_to_sleep(image=8)
        before = _resident()
        for _ in range(_MANY):
            tbb.begins(8)
            c_model.infer(request)
            tbb.ran(1, image=8)
        assert _resident() - before < _MANY * 1024 // 2


def test_they_are_awake_while_others_compute(tbb: Workers) -> None:
    tbb.put_to_sleep()
    with workers.needed():
        assert not tbb.asleep
        tbb.ran(2 * AFTER)
        assert not tbb.asleep
    tbb.put_to_sleep()


def test_bits_are_those_of_the_image(tbb: Workers, context: Context, private_dir: Path) -> None:
    image, interface = loaded_images.product(context, private_dir), openvino()
    assert interface is not None
    c_model = CModel(interface, image.compiled, image.meta)
    values = np.random.default_rng(1).standard_normal((100, 4096)).astype(np.float32)
    trials = [[one.tobytes()] for one in values]
    expected = [expected_of(image, inputs) for inputs in trials]
    tbb.put_to_sleep()
    assert [_bits(c_model, image, inputs) for inputs in trials] == expected


def test_none_waits_for_work_without_sleep(tbb: Workers, context: Context, private_dir: Path) -> None:
    image, interface = loaded_images.product(context, private_dir), openvino()
    assert interface is not None
    c_model = CModel(interface, image.compiled, image.meta)
    request = c_model.request(memory_of(image, []))
    c_model.infer(request)
    tbb.put_to_sleep()
    looks = 0

    def slept() -> bool:
        nonlocal looks
        c_model.infer(request)
        looks = 0 if _running() else looks + 1
        return looks == _LOOKS

    _until(slept)
