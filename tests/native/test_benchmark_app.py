"""OpenVINO's own benchmark tool, which comes with its package."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.conftest import OPENVINO, ROOT, Run, finished
from tests.support.daemon import Daemon

SHAPE = ("-shape", "[1,1,8,8]")
SOAK = pytest.mark.soak
OPTIONS = {
    "default": ("-niter", "20"),
    "latency": ("-hint", "latency", "-niter", "20"),
    "throughput": ("-hint", "throughput", "-niter", "20"),
    "synchronous": ("-api", "sync", "-niter", "20"),
    "asynchronous": ("-api", "async", "-nireq", "3", "-niter", "20"),
    "layers": ("-pc", "-niter", "4", "-nireq", "1"),
}

WAYS = [way if way in ("throughput", "layers") else pytest.param(way, marks=SOAK) for way in OPTIONS]

TOOL = "from openvino.tools.benchmark.main import main; main()"

# The tool of 2026.4.1 refuses every blob, for any device: it assumes precisions that nobody gave,
# and would then pass import_model a path. Both are patched from outside here.
WITH_BLOB = """
import io
from pathlib import Path
import openvino
from openvino.tools.benchmark import main
parse_args, import_model = main.parse_args, openvino.Core.import_model
def parser():
    made = parse_args()
    made.set_defaults(input_precision="", output_precision="", input_output_precision="")
    return made
main.parse_args = parser
def from_path(core, blob, *more): return import_model(core, io.BytesIO(Path(blob).read_bytes()), *more)
openvino.Core.import_model = from_path
main.main()
"""

Benchmark = Callable[..., str]


@pytest.fixture
def benchmark_app(shared_daemon: Daemon, surroundings: dict[str, str]) -> Benchmark:
    """Run the tool to its end; return its output."""

    def start(model: Path, *words: str, code: str = TOOL) -> str:
        command = [sys.executable, "-P", "-c", code]
        environment = {**surroundings, "SOFTNPU_SOCKET": str(shared_daemon.socket)}
        return finished([*command, "-d", "NPU", "-m", str(model), *words], environment).stdout

    return start


@pytest.mark.parametrize("way", WAYS)
def test_benchmark_app_runs_to_its_end(benchmark_app: Benchmark, digits: Path, way: str) -> None:
    said = benchmark_app(digits, *SHAPE, *OPTIONS[way])
    assert "Throughput:" in said
    assert ("EXECUTED" in said) == (way == "layers")
    (quoted,) = re.findall(
        r"^\$ .* benchmark_app .*\n((?s:.*?))^```$", (ROOT / "README.md").read_text(), re.M
    )
    assert set(quoted.splitlines()) - {"..."} <= set(said.splitlines())


EXPORT = """
blob = core.compile_model(digits(), "NPU", {"PERF_COUNT": sys.argv[3] == "layers"}).export_model()
open(sys.argv[2], "wb").write(blob.getvalue() if hasattr(blob, "getvalue") else blob)
"""


@pytest.mark.parametrize("way", WAYS)
def test_benchmark_app_accepts_a_blob(
    benchmark_app: Benchmark, shared_daemon: Daemon, run: Run, digits: Path, tmp_path: Path, way: str
) -> None:
    blob = tmp_path / "digits.blob"
    environment = {"SOFTNPU_SOCKET": str(shared_daemon.socket)}
    run(OPENVINO + EXPORT, str(digits), str(blob), way, environment=environment)
    said = benchmark_app(blob, *OPTIONS[way], code=WITH_BLOB)
    assert "Throughput:" in said
    assert ("EXECUTED" in said) == (way == "layers")
