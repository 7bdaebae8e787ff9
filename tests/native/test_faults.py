"""Injected faults reach unmodified OpenVINO through the native driver, and it recovers afterwards."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import StartDaemon
from tests.native.conftest import CASES_LOOP, OPENVINO, Run

FAILING = """
from softnpu.driver import faults
def fails(call, *said):
    try:
        call()
    except RuntimeError as failure:
        missing = [words for words in said if words not in str(failure)]
        assert not missing, (missing, str(failure))
    else:
        raise AssertionError(f"no failure with {said}")
def compiled(): return core.compile_model(digits(), "NPU")
def infer(): check(compiled(), digits(), images())
"""

CASES = {
    "compile-fail": """
faults.inject("compile-fail", value="no way: line 3")
fails(compiled, "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE", "no way: line 3")
infer()
""",
    "lost": """
request = compiled().create_infer_request()
request.infer([images()])
faults.inject("lost")
fails(lambda: request.infer([images()]), "zeFenceHostSynchronize", "ZE_RESULT_ERROR_DEVICE_LOST")
infer()
""",
    "ecc": """
request = compiled().create_infer_request()
faults.inject("ecc")
fails(lambda: request.infer([images()]), "zeFenceHostSynchronize", "ZE_RESULT_ERROR_UNKNOWN")
request.infer([images()])
""",
    "oom": """
faults.inject("oom")
faults.inject("oom", value="host")
fails(infer, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY")
fails(infer, "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY")
infer()
""",
    "import-fail": """
blob = compiled().export_model()
data = blob.getvalue() if hasattr(blob, "getvalue") else blob
faults.inject("import-fail")
fails(lambda: core.import_model(io.BytesIO(data), "NPU"), "ZE_RESULT_ERROR_INVALID_NATIVE_BINARY")
check(core.import_model(io.BytesIO(data), "NPU"), digits(), images())
""",
    "export-fail, with the reason of this failure": """
model = compiled()
faults.inject("compile-fail", value="no way: line 3")
fails(compiled, "no way: line 3")
faults.inject("export-fail")
fails(model.export_model, "pfnGetNativeBinary", "graph_export: injected fault")
model.export_model()
""",
    "queue": """
faults.inject("refuse", value="queue_create=ERROR_NOT_AVAILABLE")
fails(infer, "zeCommandQueueCreate", "ZE_RESULT_ERROR_NOT_AVAILABLE")
infer()
""",
    "reset": """
faults.inject("reset", after=3, count=2, probability=0.5, seed=3)
model, image = compiled(), images()
expected = on_cpu(digits(), [image])
request = model.create_infer_request()
for _ in range(20): same([request.infer([image])[0]], expected)
assert faults.status()[0].hits == 2, faults.status()
""",
}

DAEMON_DEATH = """
request = compiled().create_infer_request()
request.infer([images()])
faults.inject("daemon-death")
fails(compiled, "ZE_RESULT_ERROR_DEVICE_LOST")
fails(lambda: request.infer([images()]), "ZE_RESULT_ERROR_DEVICE_LOST")
"""


LAST = """
assert all(fault.state == "used up" for fault in faults.status()), faults.status()
faults.clear()
"""


def test_openvino_reports_faults_and_recovers(start_daemon: StartDaemon, run: Run, digits: Path) -> None:
    start_daemon()
    cases = {name: case + LAST for name, case in CASES.items()}
    run(OPENVINO + FAILING + CASES_LOOP, str(digits), json.dumps(cases))


def test_openvino_reports_the_death_of_the_daemon(start_daemon: StartDaemon, run: Run, digits: Path) -> None:
    daemon = start_daemon()
    run(OPENVINO + FAILING + DAEMON_DEATH, str(digits))
    assert daemon.process.wait(10) == -9
