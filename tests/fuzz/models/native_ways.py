"""The ways through unmodified OpenVINO, whose NPU plugin finds the native driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov

from tests.fuzz.models.case import Case
from tests.fuzz.models.records import Answer, Job
from tests.fuzz.models.reference import refuse
from tests.fuzz.models.running import Runner

Compile = Callable[[ov.Core, Case, Path], Any]
_NOT_LOADED = {"NPU_DEFER_WEIGHTS_LOAD": True}
"""For models compiled only for export, which never run."""


def _configured(**config: str) -> Compile:
    def compile_model(core: ov.Core, case: Case, _: Path) -> Any:
        return core.compile_model(case.model, "NPU", config)

    return compile_model


def _imported(core: ov.Core, case: Case, _: Path) -> Any:
    return core.import_model(_exported(core.compile_model(case.model, "NPU", _NOT_LOADED)), "NPU")


def _weightless(core: ov.Core, case: Case, folder: Path) -> Any:
    ov.serialize(case.model, folder / "model.xml")
    model = core.read_model(folder / "model.xml")
    blob = _exported(core.compile_model(model, "NPU", {**_NOT_LOADED, "ENABLE_WEIGHTLESS": True}))
    return core.import_model(blob, "NPU", {"WEIGHTS_PATH": str(folder / "model.bin")})


def _cached(core: ov.Core, case: Case, folder: Path) -> Any:
    config = {"CACHE_DIR": str(folder / "cache")}
    core.compile_model(case.model, "NPU", config)
    return core.compile_model(case.model, "NPU", config)


def _exported(compiled: Any) -> bytes:
    stream = compiled.export_model()
    return bytes(stream.getvalue() if hasattr(stream, "getvalue") else stream)


COMPILED: dict[str, Compile] = {
    "plain": _configured(),
    "compiler": _configured(NPU_BATCH_MODE="COMPILER"),
    "throughput": _configured(PERFORMANCE_HINT="THROUGHPUT"),
    "profiled": _configured(PERF_COUNT="YES"),
    "imported": _imported,
    "weightless": _weightless,
    "cached": _cached,
}
_core: ov.Core | None = None


def run(case: Case, job: Job) -> Answer:
    """Return the answer of OpenVINO's own NPU plugin over the native driver."""
    global _core
    if _core is None:
        _core = ov.Core()
        if "NPU" not in _core.available_devices:
            raise LookupError(f"OpenVINO finds {_core.available_devices}; expected an NPU in the environment")
    try:
        compiled = COMPILED[job.way.compiled](_core, case, Path(job.folder))
    except RuntimeError as error:
        return Answer(refuse("compile", error))
    try:
        return Answer(rounds=Runner(case, compiled, job, refuse, ov.AsyncInferQueue).run(job.way.run))
    except RuntimeError as error:
        return Answer(refuse("request", error))
