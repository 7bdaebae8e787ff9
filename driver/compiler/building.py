"""IR to blob: read, check, transform, bring into canonical form, pack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import openvino as ov
from blake3 import blake3

from softnpu.driver.compiler import arguments, checks, dynamic, ir, options, separation, states
from softnpu.driver.compiler.cached import Content
from softnpu.driver.compiler.canonical import Canonical, canonical
from softnpu.driver.compiler.runtime import Runtime
from softnpu.driver.compiler.separation import Weight
from softnpu.driver.compiler.stages import Stages
from softnpu.emulator.interface import blob
from softnpu.emulator.interface.blob import ArgumentMeta, GraphMeta, Section, StateMeta

if TYPE_CHECKING:
    from softnpu.driver.compiler.compilation import Order


def build(order: Order, stages: Stages, runtime: Runtime) -> Content:
    """Compiles what `order` asks for."""
    job, subject, settings = order.job, order.subject, order.settings
    stages.begin("read")
    options.check_precision(settings.precision, runtime.capabilities, subject)
    states.check_readers(order.xml, subject)
    model = ir.read(runtime.core, order.xml, order.weights, subject)
    weights = separation.find(model) if settings.separates_weights else []
    described: tuple[ArgumentMeta, ...]
    kept: tuple[StateMeta, ...] = ()
    if weights and settings.call_number == 0:
        model = separation.init_graph(model, weights)
        described = checks.arguments(model, subject)
        settings = settings.without_profiling()  # it is executed without a query
    else:
        model, described, kept = _prepared(model, weights, order, stages)
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
    form = canonical(model, order.weights, settings.embed_below, subject, stages.advance)
    stages.begin("pack")
    content = _packed(meta, form)
    stages.note(
        f"{meta.operations} operations, precision {meta.precision}, blob of {len(content.blob)} bytes,"
        f" {len(form.embedded)} constants embedded"
    )
    return content


def _prepared(
    model: ov.Model, weights: Sequence[Weight], order: Order, stages: Stages
) -> tuple[ov.Model, tuple[ArgumentMeta, ...], tuple[StateMeta, ...]]:
    """The model with shapes, types, layouts as asked for, `weights` as inputs; its arguments and states."""
    job, subject, settings = order.job, order.subject, order.settings
    by_index = arguments.take_notes(model)
    before = arguments.originals(model)
    stages.begin("shape")
    ir.reshape(model, job.shapes, subject)
    if settings.makes_static:
        dynamic.to_static(model, subject)
        before = arguments.originals(model)
    model = arguments.apply(model, order.flags, by_index, subject)
    found = states.take_out(model, subject)
    before = states.originals(before, model, found)
    # last: OpenVINO's plugin counts the other inputs without a look at those between them
    before = separation.take_out(model, weights, before, subject)
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
    data = blob.pack(sections)
    placement = b"" if form.placement is None else form.placement.encode()
    return Content(data, blake3(data, max_threads=blake3.AUTO).digest(), placement, "compiled")
