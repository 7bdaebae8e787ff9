"""Decides at compilation, by NPU_BATCH_MODE, whether the plugin or the compiler handles a batch.

AUTO selects the plugin only if samples are proven independent (`tracking`); otherwise the compiler takes the
whole batch. An explicit mode is honoured, or rejected with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import openvino as ov

from softnpu.driver import GraphSource
from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.compiler.options import STRIDES_FOR
from softnpu.plugin.batch.axes import NotSplittable, candidates, is_plausible
from softnpu.plugin.batch.input_scan import ModelInputs, Shapes, scan_model, scan_xml
from softnpu.plugin.errors import CompileError
from softnpu.plugin.properties import ModelProperties
from softnpu.plugin.signature import Signature

if TYPE_CHECKING:
    from softnpu.plugin.batch.split import Split

BATCH_MODE = "NPU_BATCH_MODE"
AUTO, PLUGIN, COMPILER = "AUTO", "PLUGIN", "COMPILER"


class BatchPlan(msgspec.Struct, frozen=True):
    """The decision for one model.

    `mode` is NPU_BATCH_MODE of the compiled model, `message` is for the log (empty without a batch), `shapes`
    and `config` are for the compiler.
    """

    mode: str
    message: str = ""
    shapes: Shapes | None = None
    split: Split | None = None
    config: Mapping[str, str] = {}

    def signature(self, meta: GraphMeta) -> Signature | None:
        """Return the ports with the batch, if the plugin splits it."""
        return None if self.split is None else self.split.signature(meta)


def plan_batch(
    source: GraphSource, read: Callable[[], ov.Model], properties: ModelProperties, shapes: Shapes | None
) -> BatchPlan:
    """Decide for the model in `source`; `read` reads it if a scan of its XML is not enough.

    `shapes` are new shapes for inputs. Raises `CompileError` if PLUGIN is requested and impossible.
    """
    plan = _decided(source, read, properties, shapes)
    config = properties.for_compiler()
    if plan.split is not None or (plan.mode == COMPILER and plan.message):
        config[BATCH_MODE] = COMPILER  # as in the real plugin
    if plan.split is not None and plan.split.strided:
        requested = [config[STRIDES_FOR]] if config.get(STRIDES_FOR) else []
        config[STRIDES_FOR] = ",".join([*requested, *plan.split.strided])
    return msgspec.structs.replace(plan, config=config)


def _decided(
    source: GraphSource, read: Callable[[], ov.Model], properties: ModelProperties, shapes: Shapes | None
) -> BatchPlan:
    name, mode = source.name, str(properties[BATCH_MODE])
    if mode == AUTO and properties["NPU_DYNAMIC_SHAPE_TO_STATIC"]:
        return BatchPlan(AUTO, shapes=shapes)  # all dynamic dimensions become static
    if source.format:
        return BatchPlan(mode, shapes=shapes)  # only a model without a batch is in another format than IR
    scanned = scan_xml(source.xml_fd, source.xml_length, shapes)
    if mode == COMPILER:
        has_batch = scanned is not None and not _has_none(scanned, explicit=False)
        size = _size(scanned, explicit=False) if scanned is not None and has_batch else ""
        message = f"batch {size} handled by the compiler, as {BATCH_MODE} asks" if size else ""
        return BatchPlan(COMPILER, message, shapes)
    explicit = mode == PLUGIN
    if scanned is not None and _has_none(scanned, explicit):
        return _unsplit(scanned, mode, shapes)
    model = read()
    try:
        scanned = scan_model(model, shapes)
        if _has_none(scanned, explicit):
            return _unsplit(scanned, mode, shapes)
        from softnpu.plugin.batch.split import find_split  # late: most models have no batch

        split = find_split(model, scanned, explicit)
        message = f"batch {split.size} -> 1 handled by the plugin: {split.text}"
        return BatchPlan(PLUGIN, message, split.shapes(scanned.inputs, shapes), split)
    except (NotSplittable, UnicodeDecodeError) as failure:
        reason = failure if isinstance(failure, NotSplittable) else f"name {failure.object!r} is not UTF-8"
        size = "unknown size" if scanned is None else _size(scanned, explicit)
        if explicit:
            raise CompileError(
                f"model '{name}', property {BATCH_MODE}: PLUGIN cannot split its batch of {size}: {reason};"
                " expected samples that are independent of each other. Use AUTO or COMPILER"
            ) from failure
        message = f"batch {size} handled by the compiler because {reason}"
        return BatchPlan(COMPILER, message, shapes)


def _unsplit(scanned: ModelInputs, mode: str, shapes: Shapes | None) -> BatchPlan:
    """Return the plan for a model without a batch, by its inputs."""
    if mode == PLUGIN or not candidates(scanned.inputs, explicit=False):
        return BatchPlan(mode, shapes=shapes)
    size = _size(scanned, explicit=False)
    message = f"first dimension {size} left to the compiler because no layout says that it is a batch"
    return BatchPlan(COMPILER, message, shapes)


def _has_none(scanned: ModelInputs, explicit: bool) -> bool:
    """Return whether the model has no batch, by its inputs."""
    try:
        possible = candidates(scanned.inputs, explicit)
    except NotSplittable:
        return False
    return not any(is_plausible(candidate, scanned.has_batch_layer, explicit) for candidate in possible)


def _size(scanned: ModelInputs, explicit: bool) -> str:
    try:
        return str(candidates(scanned.inputs, explicit)[0].size)
    except NotSplittable:
        return "unknown size"
