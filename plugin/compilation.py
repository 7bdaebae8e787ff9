"""`Core.compile_model` step by step: descriptors of the model, its batch, CACHE_DIR, the compiler."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import openvino as ov

from softnpu.driver import Context, Graph, GraphSource, ZeError
from softnpu.driver.cache_options import cache_options_from_environment
from softnpu.driver.graph_creation import compile_source
from softnpu.plugin import log
from softnpu.plugin.batch.plan import BATCH_MODE, BatchPlan, plan_batch
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.errors import CompileError, translated
from softnpu.plugin.exported import expected_graphs
from softnpu.plugin.exported.metadata import Provenance
from softnpu.plugin.models import model_source
from softnpu.plugin.models.dynamic_bounds import Shapes, with_bounds
from softnpu.plugin.properties import PROPERTIES, ModelProperties
from softnpu.plugin.requests.states import STATES_DYNAMIC, initial_config, needs_initial

Progress = Callable[[str, float], None]


def compile_model(
    context: Context,
    model: ov.Model | str | Path,
    properties: ModelProperties,
    *,
    weights: Path | None = None,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
) -> CompiledModel:
    """Compile a model and load it onto the device of `context`.

    Raises `ModelError`, `CompileError`, `PropertyError`, `DeviceLostError`, leaving nothing on the device.
    """
    hint = expected_graphs.expect_model(context, model, weights, properties.for_compiler(), shapes)
    bounded, static_shapes = with_bounds(model, weights, shapes)
    opened = model_source.open_model(bounded, weights, properties)
    source = opened.source
    logger = log.model_log(properties["LOG_LEVEL"] if "LOG_LEVEL" in properties.explicit else None)
    subject = f"compile model '{source.name}' for {properties.device_name}"
    with source, translated(subject, CompileError), ExitStack() as claim:
        plan = plan_batch(source, opened.read, properties, static_shapes)
        if plan.message:
            logger.info("model '%s': %s", source.name, plan.message)
        config = plan.for_compiler(properties.for_compiler())
        entry = None
        if properties["CACHE_DIR"]:
            from softnpu.plugin.exported.cache_entry import CacheEntry  # late: not every program has a cache

            # the key has the requested shapes: the one-sample shapes of the compiler are the same for all
            # batches
            entry = CacheEntry.find(context, source, properties, config, static_shapes, logger)
        if entry is not None:
            cached = entry.load_or_claim(claim, hint)
            if cached is not None:
                logger.info("model '%s': imported from CACHE_DIR", source.name)
                return cached
        path = "" if isinstance(model, ov.Model) else os.path.abspath(model)
        provenance = Provenance(sources=model_source.origins(source.weights), model=path)
        compiler = _Compiler(context, source, properties, plan, config, progress, opened.keep, hint)
        compiled = compiler.run(provenance)
        if entry is not None and compiled.is_for_its_device:
            entry.store(compiled)
    _log(compiled, properties, logger)
    return compiled


@contextmanager
def _meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread, which ends with the block: the device is another process."""
    thread = threading.Thread(target=work, name="keep IR")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _log(compiled: CompiledModel, properties: ModelProperties, logger: logging.Logger) -> None:
    name = compiled.meta.name
    times = (compiled.compile_ms, compiled.load_ms)
    logger.info(
        "model '%s': compiled for %s in %.1f ms, loaded in %.1f ms", name, properties.device_name, *times
    )
    for line in compiled.build_log.splitlines():
        logger.info("model '%s', compiler: %s", name, line)
    for key in sorted(properties.explicit):
        logger.debug("model '%s', property %s: %s", name, key, PROPERTIES[key].text(properties[key]))


class _Compiler(msgspec.Struct, frozen=True):
    """One run of the compiler, with a second one for computed initial values of states."""

    context: Context
    source: GraphSource
    properties: ModelProperties
    plan: BatchPlan
    config: Mapping[str, str]
    progress: Progress | None
    keep: Callable[[], None] | None
    hint: bytes

    def run(self, provenance: Provenance) -> CompiledModel:
        """Compile, and load unless NPU_DEFER_WEIGHTS_LOAD."""
        try:
            graph = self._graph(self.config)
        except ZeError as error:
            if error.info.property != STATES_DYNAMIC or STATES_DYNAMIC in self.config:
                raise
            graph = self._graph({**self.config, STATES_DYNAMIC: "YES"})
        try:
            initial = self._graph(initial_config(self.config)) if needs_initial(graph.meta) else None
            compiled = CompiledModel(
                self.context,
                graph,
                self.properties.with_values({BATCH_MODE: self.plan.mode}),
                self.plan.signature(graph.meta),
                initial,
                provenance,
            )
            with ExitStack() as stack:
                if self.keep is not None:
                    stack.enter_context(_meanwhile(self.keep))
                if compiled.is_for_its_device and not self.properties["NPU_DEFER_WEIGHTS_LOAD"]:
                    graph.initialize(self.hint)
        except BaseException:
            graph.destroy()
            raise
        return compiled

    def _graph(self, config: Mapping[str, str]) -> Graph:
        return compile_source(
            self.context,
            self.source,
            config=config,
            shapes=self.plan.shapes,
            flags=self.properties.for_graph(),
            cache=cache_options_from_environment(os.environ),
            progress=self.progress,
        )
