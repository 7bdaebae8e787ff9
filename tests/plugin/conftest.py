"""Fixtures of the plugin's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core, openvino_runtime
from softnpu.plugin.models import model_source
from tests.conftest import DIGITS
from tests.support.daemon import Daemon


@pytest.fixture
def core(daemon: Daemon) -> Iterator[Core]:
    """A core on a private daemon; releases everything at the end."""
    core = Core(daemon.socket)
    yield core
    core.unload_plugin()


@pytest.fixture
def shared_core(shared_daemon: Daemon) -> Iterator[Core]:
    """A core on the shared daemon; releases everything at the end."""
    core = Core(shared_daemon.socket)
    yield core
    core.unload_plugin()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that OpenVINO has read in this process."""
    read: list[Path] = []

    def noted(path: Path, *rest: Any) -> ov.Model:
        read.append(path)
        return openvino_runtime.read_model(path, *rest)

    monkeypatch.setattr(model_source, "read_model", noted)
    return read


@pytest.fixture(scope="module")
def digits_file() -> Path:
    """`digits`, for module-scoped fixtures."""
    return DIGITS


@pytest.fixture
def reference() -> ov.Core:
    """Plain OpenVINO."""
    return ov.Core()


@pytest.fixture
def two_by_two() -> ov.Model:
    """Two f32 inputs [2,3], two outputs: their sum, and the first one times two."""
    left = ops.parameter([2, 3], ov.Type.f32, name="left")
    right = ops.parameter([2, 3], ov.Type.f32, name="right")
    left.output(0).set_names({"left"})
    right.output(0).set_names({"right"})
    total = ops.add(left, right)
    total.output(0).set_names({"total", "sum"})
    double = ops.multiply(left, ops.constant([2.0], ov.Type.f32))
    double.output(0).set_names({"double"})
    return ov.Model([ops.result(total), ops.result(double)], [left, right], "two_by_two")


@pytest.fixture
def log_level_restored() -> Iterator[None]:
    """Restore LOG_LEVEL, which is process-wide."""
    log = logging.getLogger("softnpu.plugin")
    level, handlers = log.level, list(log.handlers)
    yield
    log.setLevel(level)
    log.handlers = handlers
