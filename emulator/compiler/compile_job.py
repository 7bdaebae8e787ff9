"""A compile job: an IR, or a model file in another format, becomes a blob."""

from __future__ import annotations

import os

from msgspec.structs import replace

from softnpu.emulator.common import linux
from softnpu.emulator.compiler.compile_request import CompiledModel, CompileRequest
from softnpu.emulator.compiler.error_info import not_utf8
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.interface.messages import FORMAT
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links.compiler import Compiled, CompileJob


def fd_count(job: CompileJob) -> int:
    """Return the number of descriptors of a job: the XML, the sources of its weights, digests of those."""
    return 1 + len(job.weights) + (job.digests_length > 0)


def build(job: CompileJob, fds: list[int], stages: Stages, runtime: Runtime) -> JobResult:
    """Compile the model in `fds`. Whatever is refused of a model in another format than IR says so."""
    # here, because it loads OpenVINO
    from softnpu.emulator.compiler.pipeline import build

    stages.begin("receive")
    subject = f"model '{job.name}'"
    request = CompileRequest.receive(job, fds, subject)
    try:
        return result(build(request, stages, runtime), request, stages)
    except (Refused, UnicodeDecodeError) as error:
        if not job.format:
            raise
        info = error.info if isinstance(error, Refused) else not_utf8(subject, error)
        raise Refused(replace(info, property=FORMAT)) from error


def result(model: CompiledModel, request: CompileRequest, stages: Stages) -> JobResult:
    """Return the answer for a model that was compiled, or found."""
    answer = Compiled(
        blob_length=model.length,
        placement_length=len(model.placement),
        origin=model.origin,
        platform=request.settings.platform,
        name=request.job.name,
        log=stages.log() if request.settings.logged else stages.remarks(),
    )
    file = model.file
    fds = [linux.sealed_copy("blob", *model.parts) if file is None else file.sealed(model.parts)]
    try:
        if model.placement:
            fds.append(linux.sealed_copy("placement", model.placement))
    except BaseException:
        os.close(fds[0])
        raise
    return JobResult(answer, tuple(fds))
