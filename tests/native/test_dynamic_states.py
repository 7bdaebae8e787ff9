"""Unmodified OpenVINO refuses dynamic states with a message: its plugin has no shape for a state."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from softnpu.plugin import Core
from tests.native.conftest import Run
from tests.support import growing
from tests.support.daemon import Daemon

REFUSED = """
import sys, openvino as ov
core = ov.Core()
try:
    core.compile_model(sys.argv[1], "NPU")
except RuntimeError as error:
    assert "variable 'past.0.key': dynamic shape [?,2,?,8]" in str(error), error
    assert "softnpu.plugin" in str(error), error
else:
    raise SystemExit("compiled")
model = core.import_model(open(sys.argv[2], "rb").read(), "NPU", {"NPU_IMPORT_RAW_BLOB": "YES"})
request = model.create_infer_request()
assert len(request.query_state()) == 4
try:
    request.infer()
except RuntimeError as error:
    assert "link between the dynamic tensor and its shape tensor is missing" in str(error), error
else:
    raise SystemExit("numbers without the shapes of the states")
"""


def test_openvino_refuses_dynamic_states(shared_daemon: Daemon, run: Run, tmp_path: Path) -> None:
    path, blob = tmp_path / "attention.xml", tmp_path / "attention.blob"
    ov.save_model(growing.attention(), path)
    core, model = Core(shared_daemon.socket), growing.attention(bound=64, reorders=False, batch=2)
    shapes = {"x": [2, 1, growing.SIZE]}
    compiled = core.compile_model(model, "NPU", {"NPU_EXPORT_RAW_BLOB": "YES"}, shapes=shapes)
    compiled.export_model(str(blob))
    core.unload_plugin()
    run(REFUSED, str(path), str(blob), environment={"SOFTNPU_SOCKET": str(shared_daemon.socket)})
