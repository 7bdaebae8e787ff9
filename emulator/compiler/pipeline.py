"""IR to blob: read, check, transform, bring into canonical form, pack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import openvino as ov
from blake3 import blake3

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta, Section, StateMeta
from softnpu.emulator.compiler import arguments, checks, dynamic, ir, options, states, weights_separation
from softnpu.emulator.compiler.canonical import Canonical, canonical
from softnpu.emulator.compiler.job_cache import Content
from softnpu.emulator.compiler.runtime import Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.compiler.weights_separation import Weight

if TYPE_CHECKING:
    from softnpu.emulator.compiler.compile_job import CompileRequest


def build(request: CompileRequest, stages: Stages, runtime: Runtime) -> Content:
    """Compiles what `order` asks for."""
    job, subject, settings = request.job, request.subject, request.settings
    stages.begin("read")
    options.check_precision(settings.precision, runtime.capabilities, subject)
    states.check_readers(request.xml, subject)
    model = ir.read(runtime.core, request.xml, request.weights, subject)
    weights = weights_separation.find(model) if settings.separates_weights else []
    described: tuple[ArgumentMeta, ...]
    kept: tuple[StateMeta, ...] = ()
    if weights and settings.call_number == 0:
        model = weights_separation.init_graph(model, weights)
        described = checks.arguments(model, subject)
        settings = settings.without_profiling()  # it is executed without a query
    else:
        model, described, kept = _prepared(model, weights, request, stages)
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
    checks.check_operations(runtime.core, model, settings.precision, subject)
    stages.begin("weights")
    form = canonical(model, request.weights, settings.embed_below, subject, stages.advance)
    stages.begin("pack")
    content = _packed(meta, form)
    stages.note(
        f"{meta.operations} operations, precision {meta.precision}, blob of {len(content.blob)} bytes,"
        f" {len(form.embedded)} constants embedded"
    )
    return content


def _prepared(
    model: ov.Model, weights: Sequence[Weight], request: CompileRequest, stages: Stages
) -> tuple[ov.Model, tuple[ArgumentMeta, ...], tuple[StateMeta, ...]]:
    """The model with shapes, types, layouts as asked for, `weights` as inputs; its arguments and states."""
    job, subject, settings = request.job, request.subject, request.settings
    by_index = arguments.take_notes(model)
    before = arguments.originals(model)
    stages.begin("shape")
    ir.reshape(model, job.shapes, subject)
    if settings.makes_static:
        dynamic.to_static(model, subject)
        before = arguments.originals(model)
    model = arguments.apply(model, request.flags, by_index, subject)
    found = states.take_out(model, subject)
    before = states.originals(before, model, found)
    # last: OpenVINO's plugin counts the other inputs without a look at those between them
    before = weights_separation.take_out(model, weights, before, subject)
    stages.begin("check")
    described, kept = states.described(
        checks.arguments(model, subject, before, settings.strides_for), found, subject
    )
    if settings.initial_states:
        model, described = states.initial_values(model, described, found, subject)
        return model, described, ()
    return model, described, kept


def _packed(meta: GraphMeta, form: Canonical) -> Content:
    sections: dict[Section, bytes | memoryview] = {
        Section.METADATA: msgspec.msgpack.encode(meta),
        Section.IR: form.xml,
    }
    if form.embedded_size:
        sections[Section.WEIGHTS] = b"".join(form.embedded_chunks())
    if form.reference is not None and form.reference.constants:
        sections[Section.WEIGHTS_REFERENCE] = msgspec.msgpack.encode(form.reference)
    data = container.pack(sections)
    placement = b"" if form.placement is None else form.placement.encode()
    return Content(data, blake3(data, max_threads=blake3.AUTO).digest(), placement, "compiled")
