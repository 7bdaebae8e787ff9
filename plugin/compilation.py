"""`Core.compile_model` step by step: descriptors of the model, its batch, CACHE_DIR, the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

import openvino as ov
from msgspec.structs import replace

from softnpu.driver import Context, Graph, GraphFlag, ZeError
from softnpu.driver.cache_options import cache_options_from_environment
from softnpu.driver.graph_creation import compile_source, refuses_format
from softnpu.emulator.compiler.options import STATES_DYNAMIC
from softnpu.plugin import log
from softnpu.plugin.batch.plan import BATCH_MODE, BatchPlan, plan_batch
from softnpu.plugin.errors import CompileError, translated
from softnpu.plugin.initial_graph import initial_config, needs_initial
from softnpu.plugin.loaded_model import LoadedModel
from softnpu.plugin.models import kernels
from softnpu.plugin.models.dynamic_bounds import Shapes
from softnpu.plugin.models.meanwhile import meanwhile
from softnpu.plugin.models.model_source import OpenedModel, open_model
from softnpu.plugin.properties import PROPERTIES, ModelProperties

Progress = Callable[[str, float], None]


def compile_model(
    context: Context,
    model: ov.Model | str | Path,
    properties: ModelProperties,
    *,
    weights: Path | None = None,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Compile a model and load it onto the device of `context`.

    Raises `ModelError`, `CompileError`, `PropertyError`, `DeviceLostError`, leaving nothing on the device.
    """
    opened = open_model(context, model, weights, shapes, properties)
    try:
        return _compile_opened(context, model, opened, properties, progress)
    except _FormatRefused:
        pass  # what is raised next has nothing to do with it
    assert opened.as_ir is not None
    again = replace(opened.as_ir(), shapes=opened.shapes, hint=opened.hint, file=opened.file)
    return _compile_opened(context, model, again, properties, progress)


class _FormatRefused(Exception):
    """The compiler does not take the model in the format of its file: OpenVINO reads it, or says why not."""


def _compile_opened(
    context: Context,
    model: ov.Model | str | Path,
    opened: OpenedModel,
    properties: ModelProperties,
    progress: Progress | None,
) -> LoadedModel:
    source = opened.source
    logger = log.model_log(properties["LOG_LEVEL"] if "LOG_LEVEL" in properties.explicit else None)
    subject = f"compile model '{source.name}' for {properties.device_name}"
    with source, translated(subject, CompileError), ExitStack() as claim:
        has_functions = kernels.attach(source, context, properties["NPU_KERNELS_FOR"])
        plan = plan_batch(source, opened.read, properties, opened.shapes)
        if plan.message:
            logger.info("model '%s': %s", source.name, plan.message)
        entry = None
        if properties["CACHE_DIR"] and not has_functions:
            from softnpu.plugin.exported import generated_names  # late: not every program has a cache
            from softnpu.plugin.exported.cache_entry import CacheEntry

            # the key has the requested shapes: the one-sample shapes of the compiler are the same for all
            # batches
            entry = CacheEntry.find(context, source, properties, plan.config, opened.shapes, logger)
        if entry is not None:
            cached = entry.load_or_claim(claim, opened.hint)
            if cached is not None:
                logger.info("model '%s': imported from CACHE_DIR", source.name)
                in_memory = model if isinstance(model, ov.Model) else None
                names = generated_names.named_as(cached.signature, in_memory, source.name)
                return replace(cached, signature=names)
        flags = properties.for_graph() | (GraphFlag.DISABLE_CACHING if has_functions else GraphFlag.NONE)
        loaded = _compile(context, opened, properties, flags, plan, progress)
        if entry is not None and loaded.is_for_its_device:
            entry.store(loaded)
    graph = loaded.graph
    logger.info(
        "model '%s': compiled for %s in %.1f ms, loaded in %.1f ms",
        *(graph.meta.name, properties.device_name, graph.compile_ms, graph.load_ms),
    )
    for line in graph.build_log.splitlines():
        logger.info("model '%s', compiler: %s", graph.meta.name, line)
    for key in sorted(properties.explicit):
        logger.debug(
            "model '%s', property %s: %s", graph.meta.name, key, PROPERTIES[key].text(properties[key])
        )
    return loaded


def _compile(
    context: Context,
    opened: OpenedModel,
    properties: ModelProperties,
    flags: GraphFlag,
    plan: BatchPlan,
    progress: Progress | None,
) -> LoadedModel:
    """Run the compiler, twice for computed initial values; load unless NPU_DEFER_WEIGHTS_LOAD."""
    cache = cache_options_from_environment(os.environ)

    def graph_of(config: Mapping[str, str]) -> Graph:
        return compile_source(
            context,
            opened.source,
            config=config,
            shapes=plan.shapes,
            flags=flags,
            cache=cache,
            progress=progress,
        )

    try:
        graph = graph_of(plan.config)
    except ZeError as error:
        if opened.as_ir is not None and refuses_format(error):
            raise _FormatRefused from error
        if error.info.property != STATES_DYNAMIC or STATES_DYNAMIC in plan.config:
            raise
        graph = graph_of({**plan.config, STATES_DYNAMIC: "YES"})
    try:
        initial = graph_of(initial_config(plan.config)) if needs_initial(graph.meta) else None
        loaded = LoadedModel.of(
            context,
            graph,
            properties.with_values({BATCH_MODE: plan.mode}),
            plan.signature(graph.meta),
            initial,
            opened.source.weights,
            opened.file,
        )
        with nullcontext() if opened.keep is None else meanwhile(opened.keep):
            if loaded.is_for_its_device and not properties["NPU_DEFER_WEIGHTS_LOAD"]:
                graph.initialize(opened.hint)
    except BaseException:
        graph.destroy()
        raise
    return loaded
