"""A query job: which layers of a model the device executes."""

from __future__ import annotations

from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import build_flags, files, options
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.interface.messages import GraphQueried
from softnpu.emulator.kernels import carried
from softnpu.emulator.links.compiler import QueryJob


def run(job: QueryJob, fds: list[int], stages: Stages, runtime: Runtime) -> JobResult:
    """Return the friendly names of the supported operations, each in angle brackets, in execution order."""
    from softnpu.emulator.compiler import arguments, checks, ir, strict

    subject = f"model '{job.name}'"
    stages.begin("receive")
    flags = build_flags.parse(job.build_flags, subject)
    settings = options.effective(flags.config, job.platform, subject, flags.config).made_strict(job.strict)
    xml, modules = carried.take(files.read_xml(fds[0], job.xml_length, f"{subject}, IR"), subject)
    weights = WeightSpace(job.weights, fds[1:], subject) if job.weights else None
    stages.begin("read")
    settings = options.with_precision(settings, runtime.capabilities, subject)
    kernels = None
    if modules or settings.kernels_for:
        from softnpu.emulator.compiler.kernels import Kernels  # late: few models have any

        kernels = Kernels.register(runtime.core, modules, job.kernels, subject)
    model = ir.read(runtime.core, xml, weights, subject)
    if kernels is not None:
        kernels.replace(model, settings.kernels_for, subject)
    arguments.remove_compiler_hints(model)
    stages.begin("check")
    operations = [operation.friendly_name for operation in model.get_ordered_ops()]
    unsupported = {
        operation.friendly_name
        for operation in checks.unsupported_operations(runtime.core, model, settings.host_precision, subject)
    }
    if kernels is not None:
        unsupported -= kernels.names(model)
    if settings.strict:
        unsupported |= strict.refused_layers(model, settings)
    text = "".join(f"<{name}>" for name in operations if name not in unsupported).encode()
    return JobResult(GraphQueried(length=len(text)), (linux.sealed_copy("layers", text),))
