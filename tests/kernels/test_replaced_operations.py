"""Own kernels in the place of standard operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest

from softnpu.plugin import Core, NpuError
from softnpu.plugin.models import kernels
from tests.support.daemon import Daemon
from tests.support.dynamic import named, source
from tests.support.kernels import Y, added, elementwise, kernel

_X = np.arange(-4, 4, dtype=np.float32).reshape(1, 8)
_ALPHA = f"""(f32.store {Y} (f32.demote_f64
  (f64.load (i32.load offset=8 (i32.load offset=24 (local.get $call)))))) (i32.const 0)"""
_FOR = "NPU_KERNELS_FOR"


def _model(shape: Any = (1, 8), layer: Any = op.relu) -> ov.Model:
    """x -> y = layer(x + 1) - 1, the layer being called 'layer'."""
    x = source(list(shape) if isinstance(shape, tuple) else shape)
    made = layer(op.add(x, op.constant(np.float32(1))))
    made.set_friendly_name("layer")
    return ov.Model([named(op.subtract(made, op.constant(np.float32(1))), "y")], [x], "replaced")


def test_a_kernel_takes_the_place_of_an_operation(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    added(core, tmp_path, elementwise("Twice"))
    ov.save_model(_model(), tmp_path / "model.xml", compress_to_fp16=False)
    cache = {"CACHE_DIR": str(tmp_path / "cache")}
    replaced = {_FOR: "Relu=tests.Twice", "PERF_COUNT": "YES"}
    for _ in range(2):
        compiled = core.compile_model(tmp_path / "model.xml", "NPU", cache | replaced)
        assert np.array_equal(compiled([_X])[0], 2 * (_X + 1) - 1)
    assert compiled.get_property("LOADED_FROM_CACHE")
    assert compiled.get_property(_FOR) == "Relu=tests.Twice"
    request = compiled.create_infer_request()
    request.infer([_X])
    (row,) = (each for each in request.get_profiling_info() if each.node_name == "layer")
    assert (row.node_type, row.exec_type) == ("Twice", "SW")
    plain = core.compile_model(tmp_path / "model.xml", "NPU", cache | {"PERF_COUNT": "YES"})
    assert np.array_equal(plain([_X])[0], np.maximum(_X + 1, 0) - 1)
    kernels._added.clear()
    added(core, tmp_path, elementwise("Twice", "(f32.mul (local.get 0) (f32.const 3))"))
    other = core.compile_model(tmp_path / "model.xml", "NPU", cache | replaced)
    assert np.array_equal(other([_X])[0], 3 * (_X + 1) - 1)
    core.unload_plugin()


def test_the_attributes_of_an_operation_are_the_kernels(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    alpha = [{"name": "alpha", "kind": "number"}]
    added(core, tmp_path, kernel(_ALPHA, name="Alpha", attributes=alpha))
    for shape, value in (((1, 1), 0.25), ("[1..4,1]", 0.5)):
        model = _model(shape, lambda x: op.elu(x, value))  # noqa: B023
        compiled = core.compile_model(model, "NPU", {_FOR: "Elu=tests.Alpha"})
        assert compiled([_X[:, :1]])[0] == value - 1
    core.unload_plugin()


def test_what_cannot_be_replaced_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    core = Core(daemon.socket)
    added(core, tmp_path, elementwise("Twice"))
    wide = [{"inputs": ["f64"], "outputs": ["f64"], "run": "run"}]
    added(core, tmp_path, kernel(name="Wide", implementations=wide))
    refused = {
        "Gelu=tests.Twice": (_model(), "Gelu, of which the model has none; expected one of: Add"),
        "Relu=tests.Wide": (_model(), r"'layer'.*kernel tests\.Wide: inputs of types f32; expected f64"),
        "Elu=tests.Twice": (_model((1, 8), lambda x: op.elu(x, 0.25)), "attribute alpha = 0.25, which"),
        "Add=tests.Twice": (_model(), "2 inputs and 1 outputs; expected 1 and 1"),
        "Relu=tests.None": (_model(), r"kernel tests\.None is not there; expected .*tests\.Twice"),
        "Relu": (_model(), r"NPU_KERNELS_FOR: value 'Relu'; expected TYPE=DOMAIN\.NAME"),
    }
    for text, (model, message) in refused.items():
        with pytest.raises(NpuError, match=message):
            core.compile_model(model, "NPU", {_FOR: text})
    core.unload_plugin()
