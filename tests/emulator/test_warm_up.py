"""An engine without an image to load prepares itself for the first one."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace
from typing import Any

import openvino as ov
import pytest

from softnpu.emulator.engine import images
from softnpu.emulator.engine.images import ImageLoader
from softnpu.emulator.links import engine as link
from softnpu.emulator.links import internal_errors
from softnpu.emulator.links.internal_errors import InternalErrors
from softnpu.emulator.openvino import first_model
from softnpu.emulator.openvino.modelled_time import host_times
from tests.support.waiting import wait_readable, wait_until

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("idle", [True, False])
def test_an_idle_engine_warms_up_and_loads_images_if_that_fails(
    monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    def fail() -> None:
        raise LookupError("a defect")

    loaded = SimpleNamespace(meta=SimpleNamespace(name="loaded"), key="", lacking="", weights=None)
    monkeypatch.setattr(internal_errors.log, "disabled", True)
    monkeypatch.setattr(images, "load_device", lambda: None)
    monkeypatch.setattr(images, "_IDLE_S", 0.01)
    monkeypatch.setattr(images, "_MOST_IDLE", math.inf if idle else -1.0)
    monkeypatch.setattr(images, "warm_up", fail)
    monkeypatch.setattr(images, "timed_load", lambda *_: (loaded, 1.0))
    reports: list[Any] = []
    loader = ImageLoader(reports.append, lambda: None, host_times, False, None, InternalErrors("engine"))
    if idle:
        wait_until(lambda: bool(reports))
        assert isinstance(reports.pop(), link.InternalError)
    counts = memoryview(bytearray(16)).cast("Q")
    loader.load(link.ImageLoad(image=1, state=0, blob_length=1), [], counts)
    wait_until(lambda: len(reports) == 2)
    assert [type(report) for report in reports] == [link.ImageBegun, link.ImageLoaded]
    assert loader.image(1).is_ready()
    assert wait_readable(loader.loaded_fd)  # its last use
    for fd in (loader.loaded_fd, loader.changes.fd):  # its thread never ends
        os.close(fd)


def test_openvino_runs_the_first_model() -> None:
    first_model.run(ov.Core())
