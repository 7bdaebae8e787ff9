"""Unmodified OpenVINO and a strict daemon: refused with a message, and HETERO leaves the rest to the CPU."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from tests.conftest import StartDaemon
from tests.native.conftest import OPENVINO, Run
from tests.prediction import models

SPLIT = """
path = sys.argv[1]
model = core.read_model(path)
names = {operation.get_friendly_name() for operation in model.get_ops()}
assert names - core.query_model(model, "NPU").keys() == {"check"}
try:
    core.compile_model(model, "NPU")
except RuntimeError as error:
    for word in ("SearchSorted", "operation.unsupported", "npu_compiler", "HETERO:NPU,CPU"):
        assert word in str(error), error
else:
    raise SystemExit("compiled")
split = core.compile_model(model, "HETERO:NPU,CPU")
assert sorted(split.get_property("EXECUTION_DEVICES")) == ["CPU", "NPU"]
check(split, model, rng.random((1, 8), np.float32))
"""


def test_hetero_runs_on_the_cpu_what_silicon_refuses(
    start_daemon: StartDaemon, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "model.xml"
    ov.save_model(models.with_unsupported(), path, compress_to_fp16=False)
    daemon = start_daemon(strict=True)
    run(OPENVINO + SPLIT, str(path), environment={"SOFTNPU_SOCKET": str(daemon.socket)})
