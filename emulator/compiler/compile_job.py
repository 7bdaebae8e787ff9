"""A compile job: an IR becomes a blob, or the cache has that blob already."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass

from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import build_flags, files, job_cache, options
from softnpu.emulator.compiler.build_flags import BuildFlags
from softnpu.emulator.compiler.job_cache import Content
from softnpu.emulator.compiler.options import Settings
from softnpu.emulator.compiler.runtime import Product, Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.interface.messages import GraphFlag
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.links.compiler import Compiled, CompileJob


@dataclass(frozen=True)
class CompileRequest:
    """What a compile job asks for, checked; its weights are mapped."""

    job: CompileJob
    subject: str
    settings: Settings
    flags: BuildFlags
    xml: bytes
    weights: WeightSpace | None


def run(job: CompileJob, fds: list[int], stages: Stages, runtime: Runtime) -> Product:
    """Compiles the IR in `fds` (the XML, then the sources of its weights)."""
    subject = f"model '{job.name}'"
    stages.begin("receive")
    request = receive(job, fds, subject)
    with ExitStack() as claims:
        entry = job_cache.look_up(request, stages, claims)
        content = entry.found if entry is not None else None
        if entry is None or content is None:
            # here, because it loads OpenVINO
            from softnpu.emulator.compiler.pipeline import build

            content = build(request, stages, runtime)
            if entry is not None and entry.store(content):
                stages.remark(job_cache.STORED)
        return _product(content, request, stages)


def receive(job: CompileJob, fds: list[int], subject: str) -> CompileRequest:
    """The order in a job: what it asks for, checked and mapped. `fds` stay the caller's."""
    flags = build_flags.parse(job.build_flags, subject)
    unknown = job.flags & ~int(~GraphFlag.NONE)
    if unknown or job.flags < 0:
        raise refuse(
            ZeResult.ERROR_INVALID_ENUMERATION,
            f"{subject}, flags",
            found=f"{job.flags:#x}",
            expected=f"bits of {int(~GraphFlag.NONE):#x}",
        )
    given = options.merged(job.config, flags.config, subject)
    if job.flags & GraphFlag.ENABLE_PROFILING:
        given[options.PROFILING] = "YES"
    settings = options.effective(given, job.platform, subject)
    xml = files.read_xml(fds[0], job.xml_length, f"{subject}, IR")
    weights = WeightSpace(job.weights, fds[1:], subject) if job.weights else None
    return CompileRequest(job, subject, settings, flags, xml, weights)


def _product(content: Content, request: CompileRequest, stages: Stages) -> Product:
    answer = Compiled(
        blob_length=len(content.blob),
        blob_digest=content.digest,
        placement_length=len(content.placement),
        placement_digest=content.placement_digest,
        origin=content.origin,
        platform=request.settings.platform,
        log=stages.log() if request.settings.logged else stages.remarks(),
    )
    fds = [linux.sealed_copy("blob", content.blob)]
    try:
        if content.placement:
            fds.append(linux.sealed_copy("placement", content.placement))
    except BaseException:
        os.close(fds[0])
        raise
    return Product(answer, tuple(fds))
