"""Which property works with which release of OpenVINO, each with its own plugin, unmodified: the table.

    python -m tests.native.releases PYTHON...      # one interpreter for each release, any other packages

prints the table of docs/native.md. The file is a program of its own as well: an interpreter that has OpenVINO
but nothing of softnpu prints an outcome for each row. Run both inside `softnpu run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "tools" / "demo" / "data" / "digits.xml"

READ_ALL = "reading every property"
_FOLDER = "<folder>"
PROPERTIES: tuple[tuple[str, object], ...] = (
    ("CACHE_DIR", _FOLDER),
    ("COMPILATION_NUM_THREADS", 2),
    ("DEVICE_ID", "4000"),
    ("ENABLE_CPU_PINNING", True),
    ("EXCLUSIVE_ASYNC_REQUESTS", True),
    ("EXECUTION_MODE_HINT", "PERFORMANCE"),
    ("INFERENCE_PRECISION_HINT", "f16"),
    ("LOG_LEVEL", "LOG_ERROR"),
    ("MODEL_PRIORITY", "HIGH"),
    ("NPU_BATCH_MODE", "COMPILER"),
    ("NPU_BYPASS_UMD_CACHING", True),
    ("NPU_COMPILATION_MODE_PARAMS", "optimization-level=1"),
    ("NPU_COMPILER_TYPE", "DRIVER"),
    ("NPU_DEFER_WEIGHTS_LOAD", True),
    ("NPU_DMA_ENGINES", 2),
    ("NPU_DPU_GROUPS", 2),
    ("NPU_MAX_TILES", 6),
    ("NPU_PLATFORM", "NPU4000"),
    ("NPU_STEPPING", 0),
    ("NPU_TILES", 4),
    ("NPU_TURBO", True),
    ("NUM_STREAMS", 1),
    ("PERFORMANCE_HINT", "THROUGHPUT"),
    ("PERFORMANCE_HINT_NUM_REQUESTS", 4),
    ("PERF_COUNT", True),
    ("WORKLOAD_TYPE", "Efficient"),
)
"""The properties that README and source of OpenVINO's NPU plugin name, in some release, with a value."""


def outcomes() -> dict[str, str]:
    """Return the outcome of each row, with the OpenVINO of this process.

    `yes`: the numbers are those of the CPU device, `f16`: those of the device's arithmetic, `-`: OpenVINO's
    own plugin refuses the property, anything else is a refusal of the driver's, or a crash.
    """
    rows: list[tuple[str, dict[str, object]]] = [(READ_ALL, {})]
    rows += [(name, {name: value}) for name, value in PROPERTIES]
    return {name: _in_a_child(config) for name, config in rows}


def _in_a_child(config: dict[str, object]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        child = os.fork()
        if child == 0:
            try:
                given = {name: folder if value == _FOLDER else value for name, value in config.items()}
                said.write_text(_outcome(given))
            finally:
                os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return said.read_text() if said.exists() else f"ended with {status}"


def _outcome(config: dict[str, object]) -> str:
    import numpy as np
    import openvino as ov

    core = ov.Core()
    model = core.read_model(os.environ["SOFTNPU_MODEL"])
    model.reshape([1, 1, 8, 8])
    image = np.random.default_rng(1).random((1, 1, 8, 8)).astype(np.float32)
    expected = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([image])[0]
    try:
        for _ in range(2):  # the second one finds a cached model
            compiled = core.compile_model(model, "NPU", config)
            found = compiled([image])[0]
        if not config:
            for name in core.get_property("NPU", "SUPPORTED_PROPERTIES"):
                with contextlib.suppress(TypeError):  # OpenVINO's Python has no type for COMPATIBILITY_CHECK
                    core.get_property("NPU", name)
            for name in compiled.get_property("SUPPORTED_PROPERTIES"):
                compiled.get_property(name)
    except RuntimeError as error:
        text = str(error)
        return text.splitlines()[-1] if "ZE_RESULT" in text else "-"
    if np.array_equal(found, expected):
        return "yes"
    return "f16" if np.allclose(found, expected, atol=1e-2) else "other numbers"


def measured(python: str | Path, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the release of an interpreter's OpenVINO, and its outcomes."""
    done = subprocess.run(
        [python, "-P", __file__],
        env={**environment, "SOFTNPU_MODEL": str(DIGITS)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    release, found = json.loads(done.stdout.splitlines()[-1])
    return str(release), dict(found)


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return the rows, a column for each release."""
    lines = [["property", *columns], ["---"] * (len(columns) + 1)]
    values = {READ_ALL: READ_ALL} | {name: f"`{name}`: {_shown(value)}" for name, value in PROPERTIES}
    lines += [[shown, *(column[name] for column in columns.values())] for name, shown in values.items()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _shown(value: object) -> str:
    if value is True:
        return "YES"
    return "a folder" if value == _FOLDER else str(value)


def main(pythons: Sequence[str]) -> None:
    """Print the outcomes of this interpreter, or the table for others; the NPU is in the environment."""
    if pythons:
        print(table(dict(measured(python, os.environ) for python in pythons)), end="")
        return
    import openvino as ov

    print(json.dumps([ov.get_version().split("-")[0], outcomes()]))


if __name__ == "__main__":
    main(sys.argv[1:])
