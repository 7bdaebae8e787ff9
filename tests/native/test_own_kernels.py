"""Own kernels in unmodified OpenVINO: a blob has all that they need, and so may a model."""

from __future__ import annotations

from pathlib import Path

from tests.native.conftest import Run
from tests.support.daemon import Daemon

EXPORTED = """
import sys
from pathlib import Path
from softnpu.plugin import Core
from tests.support.kernels import added, detections, found_twice
core, folder = Core(), Path(sys.argv[1])
model = found_twice(added(core, folder, detections(folder)))
core.compile_model(model, "NPU", {"NPU_EXPORT_RAW_BLOB": "YES"}).export_model(folder / "found.blob")
"""
IMPORTED = """
import sys, numpy as np, openvino as ov
from softnpu.tools.examples.kernels import reference
blob = open(sys.argv[1] + "/found.blob", "rb").read()
model = ov.Core().import_model(blob, "NPU", {"NPU_IMPORT_RAW_BLOB": "YES"})
rng = np.random.default_rng(0)
for candidates in (50, 1, 20, 50):
    x = rng.random((1, 6, candidates), np.float32)
    x[:, 4:] *= rng.random()
    boxes, scores, classes = reference.detections(x, 0.25, 0.7, 5)
    found = model([x])
    assert found["boxes"].shape == boxes.shape, (found["boxes"].shape, boxes.shape)
    assert np.allclose(found["boxes"], 2 * boxes)
    assert np.array_equal(found["scores"], scores) and np.array_equal(found["classes"], classes + 1)
"""

COMPILED = """
import sys, numpy as np, openvino as ov, openvino.opset13 as op
from softnpu.emulator.kernels import carried
from softnpu.emulator.openvino.kernels import operations
from tests.support.kernels import elementwise
content, core = elementwise("Twice"), ov.Core()
twice, *others = operations.extensions(operations.load(content))
for extension in (twice, *others):
    core.add_extension(extension)
x = op.parameter([1, 8], np.float32, "x")
made = ov.Model([op.result(op.relu(twice([op.negative(x).output(0)])))], [x], "kernel")
ov.save_model(made, sys.argv[1] + "/model.xml", compress_to_fp16=False)
model = core.read_model(sys.argv[1] + "/model.xml")
model.set_rt_info(carried.text([content]), carried.KEY)
assert len(core.query_model(model, "NPU")) == len(model.get_ops())
given = np.arange(-4, 4, dtype=np.float32).reshape(1, 8)
assert np.array_equal(core.compile_model(model, "NPU")([given])[0], np.maximum(-2 * given, 0))
"""


def test_a_model_may_carry_its_kernels(shared_daemon: Daemon, run: Run, tmp_path: Path) -> None:
    run(COMPILED, str(tmp_path), environment={"SOFTNPU_SOCKET": str(shared_daemon.socket)})


def test_a_blob_with_dynamic_kernels_is_right(shared_daemon: Daemon, run: Run, tmp_path: Path) -> None:
    for code in (EXPORTED, IMPORTED):
        run(code, str(tmp_path), environment={"SOFTNPU_SOCKET": str(shared_daemon.socket)})
