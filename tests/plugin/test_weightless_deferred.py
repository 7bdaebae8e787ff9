"""Deferred weights: an import does not touch them, the first request loads and checks them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.plugin import Core, NpuError
from tests.conftest import StartDaemon
from tests.plugin.weights_files import INPUT, SIZE, dense_model, write_dense
from tests.support.daemon import Daemon

DEFERRED = {"NPU_DEFER_WEIGHTS_LOAD": True}
WEIGHTLESS = {"ENABLE_WEIGHTLESS": True}
WEIGHTS = 2 * SIZE * SIZE * 4


@pytest.fixture
def core(shared_core: Core) -> Core:
    return shared_core


@pytest.fixture
def ir(private_dir: Path) -> Path:
    return write_dense(private_dir)


@pytest.fixture(params=["inside", "outside"])
def file(request: pytest.FixtureRequest, core: Core, ir: Path, private_dir: Path) -> Path:
    """An exported model, with and without its weights."""
    path = private_dir / "dense.blob"
    config = WEIGHTLESS if request.param == "outside" else {}
    core.compile_model(ir, "NPU", config).export_model(path)
    return path


@pytest.fixture
def weights(file: Path, ir: Path) -> Path:
    """The weights file."""
    return ir.with_suffix(".bin") if file.stat().st_size < WEIGHTS else file


def _spoil(weights: Path) -> None:
    """Change a number in the constant `second`."""
    first = dense_model().get_ordered_ops()
    needle = next(op for op in first if op.friendly_name == "second").data.tobytes()
    content = weights.read_bytes()
    at = content.index(needle) + 1000
    changed = bytearray(content)
    changed[at] ^= 1
    weights.write_bytes(changed)


def test_a_deferred_import_loads_with_the_first_request(core: Core, ir: Path, file: Path) -> None:
    expected = core.compile_model(ir)(INPUT)[0].copy()
    imported = core.import_model(file, "NPU", DEFERRED)
    assert imported.load_ms == 0
    request = imported.create_infer_request()
    assert imported.load_ms > 0
    np.testing.assert_array_equal(request.infer(INPUT)[0], expected)


def test_loaded_weights_count_as_device_memory(core: Core, file: Path) -> None:
    def used() -> int:
        return int(core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE"))

    before = used()
    imported = core.import_model(file, "NPU", DEFERRED)
    assert used() == before
    request = imported.create_infer_request()
    assert used() - before >= WEIGHTS
    del request, imported


def test_wrong_weights_are_detected_on_loading(
    core: Core, shared_daemon: Daemon, file: Path, weights: Path
) -> None:
    before = shared_daemon.engine().inferences
    _spoil(weights)
    imported = core.import_model(file, "NPU", DEFERRED)
    for _ in range(2):
        with pytest.raises(NpuError, match=r"constant 'second'.*blake3.*expected.*other weights"):
            imported.create_infer_request()
    assert shared_daemon.engine().inferences == before


def test_an_unchecked_image_is_never_shared_with_a_checked_one(core: Core, shared_daemon: Daemon) -> None:
    """The same blob with the right and with the wrong weights, both in sealed memory."""
    model = dense_model()
    good = core.compile_model(model).export_model()
    assert good is not None
    content = bytearray(good.getvalue())
    needle = next(op for op in model.get_ordered_ops() if op.friendly_name == "second").data.tobytes()
    content[content.index(needle) + 1000] ^= 1
    wrong = core.import_model(bytes(content), "NPU", DEFERRED)
    right = core.import_model(good, "NPU")
    assert shared_daemon.engine().images == 2
    expected = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(INPUT)[0]
    np.testing.assert_array_equal(right(INPUT)[0], expected)
    with pytest.raises(NpuError, match="constant 'second'"):
        wrong.create_infer_request()
    np.testing.assert_array_equal(right(INPUT)[0], expected)


def test_a_new_engine_checks_them_again(start_daemon: StartDaemon, file: Path, weights: Path) -> None:
    daemon = start_daemon()
    core = Core(daemon.socket)
    imported = core.import_model(file, "NPU", DEFERRED)
    request = imported.create_infer_request()
    request.infer(INPUT)
    _spoil(weights)
    daemon.kill_engine()
    daemon.wait_restarted(1)
    with pytest.raises(NpuError, match="constant 'second'"):
        request.infer(INPUT)
    core.unload_plugin()


def test_a_deferred_compilation_exports_before_it_is_loaded(core: Core, ir: Path) -> None:
    compiled = core.compile_model(ir, "NPU", DEFERRED)
    exported = compiled.export_model()
    assert isinstance(exported, io.BytesIO)
    assert compiled.load_ms == 0
    found: Any = core.import_model(exported)(INPUT)[0]
    np.testing.assert_array_equal(found, compiled(INPUT)[0])


def test_several_deferred_imports_share_one_load(core: Core, shared_daemon: Daemon, file: Path) -> None:
    kept = [core.import_model(file, "NPU", DEFERRED) for _ in range(3)]
    assert (shared_daemon.engine().graphs, shared_daemon.engine().images) == (3, 1)
    times = []
    for each in kept:
        each.create_infer_request()
        times.append(each.load_ms)
    assert times[0] > 0
    assert times[1:] == [0, 0]
    assert os.path.exists(file)
