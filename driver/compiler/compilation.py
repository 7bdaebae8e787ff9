"""A compile job: an IR becomes a blob, or the cache has that blob already."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass

from softnpu.driver.compiler import build_flags, cached, files, options
from softnpu.driver.compiler.build_flags import BuildFlags
from softnpu.driver.compiler.cached import Content
from softnpu.driver.compiler.options import Settings
from softnpu.driver.compiler.runtime import Product, Runtime
from softnpu.driver.compiler.stages import Stages
from softnpu.emulator.interface import linux
from softnpu.emulator.interface.compiling import Compiled, CompileJob
from softnpu.emulator.interface.messages import GraphFlag
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.interface.weight_space import WeightSpace


@dataclass(frozen=True)
class Order:
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
    order = receive(job, fds, subject)
    with ExitStack() as claims:
        entry = cached.look_up(order, stages, claims)
        content = entry.found if entry is not None else None
        if entry is None or content is None:
            # here, because it loads OpenVINO
            from softnpu.driver.compiler.building import build

            content = build(order, stages, runtime)
            if entry is not None and entry.store(content):
                stages.remark(cached.STORED)
        return _product(content, order, stages)


def receive(job: CompileJob, fds: list[int], subject: str) -> Order:
    """The order in a job: what it asks for, checked and mapped. `fds` stay the caller's."""
    flags = build_flags.parse(job.build_flags, subject)
    unknown = job.flags & ~int(~GraphFlag.NONE)
    if unknown or job.flags < 0:
        raise refuse(
            ZeResult.ERROR_INVALID_ENUMERATION,
            f"{subject}, flags",
            f"{job.flags:#x}",
            f"bits of {int(~GraphFlag.NONE):#x}",
        )
    given = options.merged(job.config, flags.config, subject)
    if job.flags & GraphFlag.ENABLE_PROFILING:
        given[options.PROFILING] = "YES"
    settings = options.effective(given, job.platform, subject)
    xml = files.read_xml(fds[0], job.xml_length, f"{subject}, IR")
    weights = WeightSpace(job.weights, fds[1:], subject) if job.weights else None
    return Order(job, subject, settings, flags, xml, weights)


def _product(content: Content, order: Order, stages: Stages) -> Product:
    answer = Compiled(
        blob_length=len(content.blob),
        blob_digest=content.digest,
        placement_length=len(content.placement),
        placement_digest=content.placement_digest,
        origin=content.origin,
        platform=order.settings.platform,
        log=stages.log() if order.settings.logged else stages.remarks(),
    )
    fds = [linux.sealed_copy("blob", content.blob)]
    try:
        if content.placement:
            fds.append(linux.sealed_copy("placement", content.placement))
    except BaseException:
        os.close(fds[0])
        raise
    return Product(answer, tuple(fds))
