"""Truncating or writing a weights file in use fails its users, but no engine."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.plugin import Core
from tests.support.daemon import Daemon
from tests.support.models import Array
from tests.support.waiting import wait_until

_COUNT = 1 << 20


def _write(folder: Path, value: float, name: str) -> Path:
    """Write an IR whose weights OpenVINO reads in place: a table for Gather, and numbers to add."""
    data = ops.parameter([_COUNT], ov.Type.f32, name="data")
    table = ops.constant(np.full((100_000, 64), value, np.float32))
    rows = ops.gather(table, ops.constant(np.array([0, 1, 99_999], np.int32)), ops.constant(np.int32(0)))
    total = ops.add(data, ops.constant(np.full(_COUNT, value, np.float32)))
    index = ops.parameter([4], ov.Type.i32, name="index")
    found = ops.gather(table, index, ops.constant(np.int32(0)))
    path = folder / f"{name}.xml"
    ov.serialize(ov.Model([rows, total, found], [data, index], "changing"), path)
    return path


@pytest.fixture
def infer(daemon: Daemon, core: Core, private_dir: Path) -> Callable[[], set[float]]:
    """Infer with a model whose weights are all 1; return the values of its results."""
    request = core.compile_model(_write(private_dir, 1, "one"), "NPU").create_infer_request()
    inputs: dict[str, Array] = {
        "data": np.zeros(_COUNT, np.float32),
        "index": np.array([0, 5, 99_999, 50_000], np.int32),
    }

    def run() -> set[float]:
        results = request.infer(inputs)
        return {float(value) for result in results.to_tuple() for value in np.unique(result)}

    assert daemon.alive
    assert run() == {1.0}
    return run


def _fails(infer: Callable[[], set[float]]) -> str:
    failures = []

    def failed() -> bool:
        try:
            infer()
        except RuntimeError as error:
            failures.append(str(error))
        return bool(failures)

    wait_until(failed, what="a refusal")
    with pytest.raises(RuntimeError):
        infer()
    return failures[0]


@pytest.mark.parametrize("size", [0, 100, 4096 * 1000, 4096 * 1000 + 10])
def test_truncated_weights_cost_no_engine(
    daemon: Daemon, core: Core, infer: Callable[[], set[float]], private_dir: Path, size: int
) -> None:
    engine = daemon.engine().engine_pid
    os.truncate(private_dir / "one.bin", size)
    assert "weights" in _fails(infer)
    assert daemon.engine().engine_pid == engine
    _check_another(core, private_dir)


def test_overwritten_weights_are_refused(
    daemon: Daemon, core: Core, infer: Callable[[], set[float]], private_dir: Path
) -> None:
    engine = daemon.engine().engine_pid
    other = _write(private_dir, 2, "two").with_suffix(".bin").read_bytes()
    with open(private_dir / "one.bin", "r+b") as file:
        file.write(other)
    assert "other weights" in _fails(infer)
    assert daemon.engine().engine_pid == engine
    _check_another(core, private_dir)


def test_rewritten_weights_are_refused(infer: Callable[[], set[float]], private_dir: Path) -> None:
    other = _write(private_dir, 2, "two").with_suffix(".bin").read_bytes()
    (private_dir / "one.bin").write_bytes(other)
    assert "weights" in _fails(infer)


def test_weights_rewritten_with_the_same_content_keep_working(
    infer: Callable[[], set[float]], private_dir: Path
) -> None:
    content = (private_dir / "one.bin").read_bytes()
    with open(private_dir / "one.bin", "r+b") as file:
        file.write(content)
    assert infer() == {1.0}
    assert infer() == {1.0}


def test_replaced_files_leave_weights_in_use_unchanged(
    infer: Callable[[], set[float]], private_dir: Path
) -> None:
    (private_dir / "new").write_bytes(_write(private_dir, 2, "two").with_suffix(".bin").read_bytes())
    (private_dir / "new").replace(private_dir / "one.bin")
    assert infer() == {1.0}


def test_weights_truncated_before_the_load_are_refused(daemon: Daemon, core: Core, private_dir: Path) -> None:
    engine = daemon.engine().engine_pid
    xml = _write(private_dir, 1, "one")
    compiled = core.compile_model(xml, "NPU")
    os.truncate(xml.with_suffix(".bin"), mmap.PAGESIZE)
    with pytest.raises(RuntimeError, match=r"weights|inside the file"):
        compiled.create_infer_request().infer([np.zeros(_COUNT, np.float32), np.zeros(4, np.int32)])
    assert daemon.engine().engine_pid == engine


def _check_another(core: Core, folder: Path) -> None:
    request = core.compile_model(_write(folder, 3, "three"), "NPU").create_infer_request()
    results = request.infer([np.zeros(_COUNT, np.float32), np.zeros(4, np.int32)])
    assert {float(value) for result in results.to_tuple() for value in np.unique(result)} == {3.0}
