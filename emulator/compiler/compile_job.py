"""A compile job: an IR becomes a blob."""

from __future__ import annotations

import os

from softnpu.emulator.common import linux
from softnpu.emulator.compiler.compile_request import CompiledModel, CompileRequest
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.links.compiler import Compiled, CompileJob


def fd_count(job: CompileJob) -> int:
    """Return the number of descriptors of a job: the XML, the sources of its weights, digests of those."""
    return 1 + len(job.weights) + (job.digests_length > 0)


def build(job: CompileJob, fds: list[int], stages: Stages, runtime: Runtime) -> JobResult:
    """Compile the IR in `fds`."""
    # here, because it loads OpenVINO
    from softnpu.emulator.compiler.pipeline import build

    stages.begin("receive")
    request = CompileRequest.receive(job, fds, f"model '{job.name}'")
    return result(build(request, stages, runtime), request, stages)


def result(model: CompiledModel, request: CompileRequest, stages: Stages) -> JobResult:
    """Return the answer for a model that was compiled, or found."""
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
