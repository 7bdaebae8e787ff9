"""Model to blob: read, check, transform, bring into canonical form, pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import openvino as ov

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta, Section, StateMeta
from softnpu.emulator.blob.kernel_plan import KernelPlan
from softnpu.emulator.compiler import (
    arguments,
    checks,
    dynamic,
    dynamic_states,
    ir,
    known_sizes,
    onnx_file,
    options,
    plain_operations,
    states,
    strict,
    weights_separation,
)
from softnpu.emulator.compiler.canonical import Canonical, canonical
from softnpu.emulator.compiler.compile_request import CompiledModel, CompileRequest
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.compiler.runtime import Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.compiler.weights_separation import Weight
from softnpu.emulator.interface.result import ZeResult


def build(request: CompileRequest, stages: Stages, runtime: Runtime) -> CompiledModel:
    """Compile what `request` asks for."""
    job, subject = request.job, request.subject
    stages.begin("read")
    settings = options.with_precision(request.settings, runtime.capabilities, subject)
    stages.remark(options.precision_remark(settings))
    if settings.dynamic_states:
        dynamic_states.check_settings(settings, subject)
    kernels = None
    if request.kernels or settings.kernels_for:
        from softnpu.emulator.compiler.kernels import Kernels  # late: few models have any

        kernels = Kernels.register(runtime.core, request.kernels, job.kernels, subject)
    model = _read(runtime.core, request)
    if kernels is not None:
        kernels.replace(model, settings.kernels_for, subject)
    weights = weights_separation.find(model) if settings.separates_weights else []
    described: tuple[ArgumentMeta, ...]
    kept: tuple[StateMeta, ...] = ()
    if weights and settings.call_number == 0:
        model = weights_separation.init_graph(model, weights)
        described = checks.arguments(model, subject)
        settings = settings.without_profiling()  # it is executed without a query
    else:
        model, described, kept = _prepared(runtime.core, model, weights, request, stages)
    checks.check_count(described, subject)
    plan = None if kernels is None else kernels.cut(model, subject)
    meta = GraphMeta(
        name=job.name or model.get_friendly_name(),
        platform=settings.platform,
        precision=settings.precision,
        config=settings.engine,
        arguments=described,
        states=kept,
        operations=len(model.get_ops()),
        openvino=ov.get_version(),
        compiler=options.COMPILER,
    )
    if plan is None:
        with openvino_errors(ZeResult.ERROR_MODULE_BUILD_FAILURE, subject, "a model that can be compiled"):
            known_sizes.fold(model)
    metadata = msgspec.msgpack.encode(meta)
    # all sections that a blob may have, with all constants inside
    embedded_at = container.second_at(len(Section) - (plan is None), len(metadata))
    with _checking(runtime.core, model, settings.host_precision, subject) as is_plain:
        stages.begin("weights")
        form = canonical(
            model,
            request.digests,
            settings.embed_below,
            subject,
            stages.advance,
            embedded_at=embedded_at,
            is_ours=is_plain,
        )
    stages.begin("pack")
    compiled = _packed(metadata, form, plan)
    stages.note(
        f"{meta.operations} operations, precision {meta.precision}, blob of {compiled.length} bytes,"
        f" {len(form.embedded)} constants embedded"
    )
    return compiled


def _read(core: ov.Core, request: CompileRequest) -> ov.Model:
    if isinstance(request.xml, memoryview):
        return onnx_file.read(request.xml, request.fd, request.subject)
    states.check_readers(request.xml, request.subject)
    return ir.read(core, request.xml, request.weights, request.subject)


@contextmanager
def _checking(core: ov.Core, model: ov.Model, precision: str, subject: str) -> Iterator[bool]:
    """Check the operations of a model in another thread: it takes longer than the block.

    What it refuses goes before what the block refuses. The block gets whether all are plain, and need no
    check.
    """
    if plain_operations.are_all(model):
        yield True
        return
    copy = model.clone()
    with ThreadPoolExecutor(1, "operations") as pool:
        checked = pool.submit(checks.check_operations, core, copy, precision, subject)
        try:
            yield False
        finally:
            checked.result()


def _prepared(
    core: ov.Core,
    model: ov.Model,
    weights: Sequence[Weight],
    request: CompileRequest,
    stages: Stages,
) -> tuple[ov.Model, tuple[ArgumentMeta, ...], tuple[StateMeta, ...]]:
    """The model with its requested shapes, types and layouts, `weights` as inputs; arguments and states."""
    job, subject, settings = request.job, request.subject, request.settings
    by_index = arguments.remove_compiler_hints(model)
    before = arguments.originals(model)
    model = arguments.apply(model, request.flags, by_index, subject)
    before = arguments.with_shapes(before, model)
    stages.begin("shape")
    ir.reshape(model, job.shapes, subject)
    if settings.makes_static:
        dynamic.to_static(model, subject)
        before = arguments.with_shapes(before, model)
    if settings.strict:
        strict.check(model, settings, subject, stages)
    if settings.dynamic_states:
        stages.begin("check")
        own = checks.arguments(model, subject, before, settings.strides_for)
        widened = dynamic_states.widen(core, model, subject) if settings.precision == "f32" else ()
        return model, *dynamic_states.described(model, own, subject, widened)
    variables = states.extract(model, subject)
    before = states.originals(before, model, variables)
    # last: OpenVINO's plugin counts the other inputs as if they were the first
    before = weights_separation.replace_by_inputs(model, weights, before, subject)
    stages.begin("check")
    described, kept = states.described(
        checks.arguments(model, subject, before, settings.strides_for), variables, subject
    )
    if settings.initial_states:
        model, described = states.initial_values(model, described, variables, subject)
        return model, described, ()
    return model, described, kept


def _packed(metadata: bytes, form: Canonical, plan: KernelPlan | None) -> CompiledModel:
    sections: dict[Section, list[bytes | memoryview]] = {Section.METADATA: [metadata], Section.IR: [form.xml]}
    if form.embedded_size:
        sections[Section.WEIGHTS] = list(form.embedded_chunks())
    if form.reference is not None and form.reference.constants:
        sections[Section.WEIGHTS_REFERENCE] = [msgspec.msgpack.encode(form.reference)]
    if plan is not None:
        sections[Section.KERNELS] = [msgspec.msgpack.encode(plan)]
    placement = b"" if form.placement is None else form.placement.encode()
    digests = {} if form.file is None else {Section.WEIGHTS: form.file.digest}
    return CompiledModel(
        container.parts_of(container.in_order(sections), digests), placement, "compiled", form.file
    )
