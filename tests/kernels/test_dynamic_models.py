"""Models with own kernels whose shapes change: by their inputs, and by what a kernel finds in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest
from msgspec.structs import replace

from softnpu.emulator.blob.container import BlobReader, Section, pack
from softnpu.emulator.kernels.instance import Instance
from softnpu.emulator.kernels.module import KernelModule
from softnpu.emulator.openvino.kernels import operations
from softnpu.plugin import CompiledModel, Core, NpuError
from softnpu.tools.examples.kernels import reference
from tests.support.daemon import Daemon
from tests.support.dynamic import named, source
from tests.support.kernels import added, detections, elementwise, found_twice, kernel, shapes_body

_SHAPES = ((3, 5), (1, 1), (8, 64), (3, 5), (7, 0), (2, 33))
_JUMPS = shapes_body("""(local $from i32) (local $to i32)
  (local.set $from (i32.load offset=16 (local.get $call)))
  (local.set $to (i32.load offset=20 (local.get $call)))
  (i32.store offset=8 (local.get $to) (i32.const 1))
  (i64.store offset=16 (local.get $to) (i64.rem_u (i64.load offset=16 (local.get $from)) (i64.const 8)))
  (i32.const 0)""")
"""An extent that is not the larger the larger the input is: 0 to 7, and 1 or 0 at the bounds 1 and 8."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Build the example, which OpenVINO will keep; its first instance makes a descriptor, which lasts too."""
    content = detections(tmp_path_factory.mktemp("detections"))
    module = operations.load(content)
    assert isinstance(module, KernelModule)
    Instance(module, 1000)
    return content


def _model(twice: Any) -> ov.Model:
    """Two kernels, and parts before, between and behind them; one asks for the shape of the input."""
    x = source("[1..8,0..64]")
    before = op.add(x, op.constant(np.float32(1)))
    first = twice([before.output(0)])
    between = op.relu(first)
    second = twice([between.output(0)])
    flat = op.reshape(second, op.constant(np.array([-1])), special_zero=False)
    whole = op.reshape(flat, op.shape_of(x), special_zero=False)
    return ov.Model([named(op.add(whole, between), "sum"), named(first, "first")], [x], "open")


def _check(compiled: CompiledModel) -> None:
    for shape in _SHAPES:
        x = np.random.default_rng(shape).standard_normal(shape, np.float32)
        first = 2 * (x + 1)
        found = compiled([x])
        assert np.array_equal(found["sum"], 3 * np.maximum(first, 0)), shape
        assert np.array_equal(found["first"], first), shape


def test_each_inference_has_its_own_shape(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    compiled = core.compile_model(_model(added(core, tmp_path, elementwise("Twice"))))
    assert [each.partial_shape for each in compiled.outputs] == [ov.PartialShape("[1..8,0..64]")] * 2
    _check(compiled)
    compiled.export_model(tmp_path / "model.blob")
    _check(Core(daemon.socket).import_model(tmp_path / "model.blob"))
    core.unload_plugin()


def test_what_a_kernel_finds_decides_the_shape(daemon: Daemon, tmp_path: Path, decoder: bytes) -> None:
    core = Core(daemon.socket)
    model = found_twice(added(core, tmp_path, decoder))
    compiled = core.compile_model(model, "NPU", {"PERF_COUNT": "YES"})
    assert [str(each.partial_shape) for each in compiled.outputs] == ["[..5,..4]", "[..5]", "[..5]"]
    compiled.export_model(tmp_path / "model.blob")
    imported = Core(daemon.socket).import_model(tmp_path / "model.blob")
    rng = np.random.default_rng(0)
    numbers = set()
    for candidates in (50, 1, 20, 50, 50):
        x = rng.random((1, 6, candidates), np.float32)
        x[:, 4:] *= rng.random()
        boxes, scores, classes = reference.detections(x, 0.25, 0.7, 5)
        numbers.add(len(scores))
        for each in (compiled, imported):
            found = each([x])
            assert found["boxes"].shape == boxes.shape
            assert np.allclose(found["boxes"], 2 * boxes)
            assert np.array_equal(found["scores"], scores)
            assert np.array_equal(found["classes"], classes + 1)
    assert {0, 5} <= numbers
    core.unload_plugin()


def test_samples_of_a_batch_run_one_by_one(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    twice = added(core, tmp_path, elementwise("Twice"))
    x = source([-1, 3, 4, 4])
    x.set_layout(ov.Layout("NCHW"))
    model = ov.Model([named(twice([op.relu(x).output(0)]), "y")], [x], "batch")
    compiled = core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "PLUGIN"})
    for batch in (3, 1):
        given = np.random.default_rng(batch).standard_normal((batch, 3, 4, 4), np.float32)
        assert np.array_equal(compiled([given])[0], 2 * np.maximum(given, 0))
    core.unload_plugin()


def test_a_state_may_be_before_and_behind_a_kernel(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    twice = added(core, tmp_path, elementwise("Twice"))
    x = source("[1..8,4]")
    kept = op.read_value(op.constant(np.ones((1, 4), np.float32)), "kept")
    largest = op.reduce_max(twice([op.add(x, kept).output(0)]), op.constant(np.array([0])), keep_dims=True)
    assigned = op.assign(largest, "kept")
    model = ov.Model([op.result(largest)], [assigned], [x], "state")
    request = core.compile_model(model).create_infer_request()
    state = np.ones((1, 4), np.float32)
    for rows in (2, 8, 1):
        given = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
        state = (2 * (given + state)).max(0, keepdims=True)
        assert np.array_equal(request.infer([given])[0], state)
    core.unload_plugin()


def test_what_does_not_fit_is_refused_by_name(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    twice = added(core, tmp_path, elementwise("Twice"))
    x = source([-1, 4])
    model = ov.Model([named(twice([x.output(0)]), "y")], [x], "open")
    with pytest.raises(NpuError, match=r"'x': shape \[\?,4\] .*kernel.*; expected a bound for every"):
        core.compile_model(model)
    compiled = core.compile_model(model, shapes={"x": ["1..8", 4]})
    given = np.ones((8, 4), np.float32)
    with pytest.raises(NpuError, match="expected"):
        compiled([np.ones((9, 4), np.float32)])
    assert np.array_equal(compiled([given])[0], 2 * given)
    jumps = added(core, tmp_path, kernel("(i32.const 0)", shapes=_JUMPS, name="Jumps"))
    x = source("[1..8]")
    compiled = core.compile_model(ov.Model([named(jumps([x.output(0)]), "y")], [x], "jumps"))
    with pytest.raises(
        NpuError, match=r"tests\.Jumps: output y of \[5\] for inputs \[5\]; expected \[0\.\.1\]"
    ):
        compiled([np.ones(5, np.float32)])
    assert compiled([np.ones(8, np.float32)])[0].shape == (0,)
    assert daemon.engine().restarts == 0
    core.unload_plugin()


def test_bounds_that_are_not_those_of_the_ir_are_refused(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    model = _model(added(core, tmp_path, elementwise("Twice")))
    raw = {"NPU_EXPORT_RAW_BLOB": "YES", "NPU_IMPORT_RAW_BLOB": "YES"}
    core.compile_model(model, "NPU", raw).export_model(tmp_path / "model.blob")
    reader = BlobReader((tmp_path / "model.blob").read_bytes())
    sections: dict[Section, bytes | memoryview] = {
        Section(kind): reader.read(Section(kind)) for kind, _, _ in reader.sections
    }
    meta = reader.metadata()
    first = next(at for at, each in enumerate(meta.arguments) if not each.input)
    for bounds in ("nonsense", "...", "[1..9,0..64]", "[1..8,0..99999999999999999999]", "[0..64]"):
        arguments = list(meta.arguments)
        arguments[first] = replace(arguments[first], partial_shape=bounds)
        sections[Section.METADATA] = msgspec.msgpack.encode(replace(meta, arguments=tuple(arguments)))
        with pytest.raises(NpuError, match="arguments: argument 2 is output"):
            core.import_model(pack(sections), "NPU", raw)
    core.unload_plugin()
