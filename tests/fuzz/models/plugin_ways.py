"""The ways of `softnpu.plugin` to compile a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.driver import ZeError
from softnpu.plugin import AsyncInferQueue, CompiledModel, Core
from softnpu.plugin.errors import NpuError
from tests.fuzz.models.case import Case
from tests.fuzz.models.records import Answer, Job, Refusal
from tests.fuzz.models.running import Runner

Compile = Callable[[Core, Case, Path], CompiledModel]
_NOT_LOADED = {"NPU_DEFER_WEIGHTS_LOAD": "YES"}
"""For models compiled only for export or cache, which never run: the engine need not load them."""


def refuse(stage: str, error: Exception) -> Refusal:
    """Return an error of softnpu: one of the plugin's classes, with more text than OpenVINO's last line."""
    typed = isinstance(error, NpuError) and len(str(error)) > 20 and not isinstance(error, ZeError)
    text = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return Refusal(stage, type(error).__name__, text[-600:], typed)


def _plain(core: Core, case: Case, _: Path) -> CompiledModel:
    return core.compile_model(case.model, "NPU")


def _configured(**config: str) -> Compile:
    def compile_model(core: Core, case: Case, _: Path) -> CompiledModel:
        return core.compile_model(case.model, "NPU", config)

    return compile_model


def _file(core: Core, case: Case, folder: Path) -> CompiledModel:
    ov.serialize(case.model, folder / "model.xml")
    return core.compile_model(folder / "model.xml", "NPU")


def _imported(core: Core, case: Case, _: Path) -> CompiledModel:
    stream = core.compile_model(case.model, "NPU", _NOT_LOADED).export_model()
    return core.import_model(stream, "NPU")


def _imported_file(core: Core, case: Case, folder: Path) -> CompiledModel:
    core.compile_model(case.model, "NPU", _NOT_LOADED).export_model(folder / "model.blob")
    return core.import_model(folder / "model.blob", "NPU", {"NPU_DEFER_WEIGHTS_LOAD": "YES"})


def _weightless(core: Core, case: Case, _: Path) -> CompiledModel:
    stream = core.compile_model(case.model, "NPU", _NOT_LOADED | {"ENABLE_WEIGHTLESS": "YES"}).export_model()
    return core.import_model(stream, "NPU", model=case.model)


def _weightless_file(core: Core, case: Case, folder: Path) -> CompiledModel:
    ov.serialize(case.model, folder / "model.xml")
    config = _NOT_LOADED | {"ENABLE_WEIGHTLESS": "YES"}
    core.compile_model(folder / "model.xml", "NPU", config).export_model(folder / "model.blob")
    return core.import_model(folder / "model.blob", "NPU")


def _twice(core: Core, case: Case, config: dict[str, str]) -> CompiledModel:
    core.compile_model(case.model, "NPU", config | _NOT_LOADED)
    return core.compile_model(case.model, "NPU", config)


def _cached(core: Core, case: Case, folder: Path) -> CompiledModel:
    return _twice(core, case, {"CACHE_DIR": str(folder / "cache")})


def _cached_small(core: Core, case: Case, folder: Path) -> CompiledModel:
    return _twice(core, case, {"CACHE_DIR": str(folder / "cache"), "CACHE_MODE": "OPTIMIZE_SIZE"})


def _driver_cache(core: Core, case: Case, folder: Path) -> CompiledModel:
    before = os.environ["ZE_INTEL_NPU_CACHE_DIR"]
    os.environ["ZE_INTEL_NPU_CACHE_DIR"] = str(folder / "driver")
    try:
        return _twice(core, case, {})
    finally:
        os.environ["ZE_INTEL_NPU_CACHE_DIR"] = before


COMPILED: dict[str, Compile] = {
    "plain": _plain,
    "compiler": _configured(NPU_BATCH_MODE="COMPILER"),
    "split": _configured(NPU_BATCH_MODE="PLUGIN"),
    "throughput": _configured(PERFORMANCE_HINT="THROUGHPUT"),
    "profiled": _configured(PERF_COUNT="YES"),
    "deferred": _configured(NPU_DEFER_WEIGHTS_LOAD="YES"),
    "file": _file,
    "imported": _imported,
    "imported file": _imported_file,
    "weightless": _weightless,
    "weightless file": _weightless_file,
    "cached": _cached,
    "cached small": _cached_small,
    "driver cache": _driver_cache,
}
_core: Core | None = None


def run(case: Case, job: Job) -> Answer:
    """Return the answer of softnpu's own plugin."""
    global _core
    if _core is None:
        _core = Core()
    try:
        compiled = COMPILED[job.way.compiled](_core, case, Path(job.folder))
        rounds = Runner(case, compiled, job, refuse, AsyncInferQueue).run(job.way.run)
    except Exception as error:  # noqa: BLE001 - every error is an answer here
        return Answer(refuse("compile", error))
    return Answer(rounds=rounds, notes=_notes(compiled))


def _notes(compiled: Any) -> dict[str, Any]:
    """Return where the plugin has split a batch."""
    signature = compiled.signature
    if not signature.batch:
        return {}
    return {
        "inputs": [(port.batch_axis, port.per_sample) for port in signature.inputs],
        "outputs": [(port.batch_axis, port.per_sample) for port in signature.outputs],
    }
