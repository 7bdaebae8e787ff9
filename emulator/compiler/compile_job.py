"""A compile job: an IR becomes a blob, or the cache has that blob already."""

from __future__ import annotations

import os
from contextlib import ExitStack

from softnpu.emulator.common import linux
from softnpu.emulator.compiler import confinement, job_cache
from softnpu.emulator.compiler.compile_request import CompiledModel, CompileRequest
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.links.compiler import Compiled, CompileJob


def run(job: CompileJob, fds: list[int], stages: Stages, runtime: Runtime) -> JobResult:
    """Compile the IR in `fds` (the XML, then the sources of its weights)."""
    stages.begin("receive")
    request = CompileRequest.receive(job, fds, f"model '{job.name}'")
    confinement.enter(job, job_cache.options(job), request.settings.precision, stages)
    with ExitStack() as claims:
        entry = job_cache.look_up(request, stages, claims)
        model = None if entry is None else entry.model
        if model is None:
            # here, because it loads OpenVINO
            from softnpu.emulator.compiler.pipeline import build

            model = build(request, stages, runtime)
            if entry is not None and entry.store(model):
                stages.remark(job_cache.STORED)
        return _result(model, request, stages)


def _result(model: CompiledModel, request: CompileRequest, stages: Stages) -> JobResult:
    answer = Compiled(
        blob_length=len(model.blob),
        blob_digest=model.digest,
        placement_length=len(model.placement),
        placement_digest=model.placement_digest,
        origin=model.origin,
        platform=request.settings.platform,
        name=request.job.name,
        log=stages.log() if request.settings.logged else stages.remarks(),
    )
    fds = [linux.sealed_copy("blob", model.blob)]
    try:
        if model.placement:
            fds.append(linux.sealed_copy("placement", model.placement))
    except BaseException:
        os.close(fds[0])
        raise
    return JobResult(answer, tuple(fds))
