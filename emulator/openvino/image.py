"""Compile an image with OpenVINO's CPU device, or take it from the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import openvino as ov

from softnpu.emulator.arithmetic import settings as arithmetic
from softnpu.emulator.blob.constant_digests import check_constants
from softnpu.emulator.blob.container import BlobReader, GraphMeta, Section
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement, offsets_in_space, with_actual_offsets
from softnpu.emulator.common import model_bodies
from softnpu.emulator.interface import trace
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.c_models import CModel
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.defects import (
    empty_tensors,
    quantised_subgraphs,
    remedies,
    rounded_states,
    shared_tensors,
)
from softnpu.emulator.openvino.defects.defect import Build
from softnpu.emulator.openvino.fused_states.states import FusedStates
from softnpu.emulator.openvino.modelled_time import Modelled, ModelledTime
from softnpu.emulator.openvino.runtime import core, properties_of
from softnpu.emulator.openvino.weights import weight_pages
from softnpu.emulator.openvino.weights.weight_files import GuardedWeights

_MOST_EMPTY = 8  # sets of zero dimensions, before a model is compiled for all of them


class LoadedImage:
    """A compiled model on the device, shared by all graphs of this content.

    Constants are used in place: their sources and the blob stay mapped as long as the image lives. `check`
    compares them with the digests in the blob first, and names mismatches. `streams`: number of inferences at
    once, each with its share of the threads. `key`: its key in `cache`, empty if it is not cached;
    `lacking`: the same, empty if it was loaded from there. `computes_sizes`: whether sizes within the model
    depend on the values or dynamic shapes of its inputs.
    """

    has_kernels = False

    def __init__(
        self,
        reader: BlobReader,
        placement: Placement | None,
        space: WeightSpace,
        modelled: Modelled,
        check: bool = False,
        cache: CpuCache | None = None,
    ) -> None:
        self.meta = reader.metadata()
        reference = reader.weights_reference()
        actual = offsets_in_space(reference, placement, space.layout, space.embedded)
        if check and reference is not None:
            outside = [actual[constant.offset] for constant in reference.outside]
            check_constants(reference, outside, space, f"model '{self.meta.name}'", lambda _: None)
        self.compilations = 0
        self.weights_size = 0 if reference is None else reference.size
        self.c_model: CModel | None = None  # once verified: see `c_model_maker`
        self.c_model_asked = False
        self.key = self.lacking = ""
        self.weights: GuardedWeights | None = None
        self.has_layers = self.is_unfused = self.computes_sizes = False
        self.modelled: ModelledTime | None = None
        self.fused_states: FusedStates | None = None
        self._model: ov.Model | None = None
        self._is_spoiled = False
        traced = trace.active is not None and trace.active.layers  # cached images have no layer profile
        if cache is None or traced or not self._find(reader, cache):
            xml = with_actual_offsets(bytes(reader.read(Section.IR)), actual)
            self._read(xml, space, modelled)
        self._examine()

    def _examine(self) -> None:
        """Look at the ports of what was compiled."""
        self.separated = rounded_states.positions(self.meta, self.compiled)
        """Positions of outputs that `rounded_states` has changed."""
        self.unbound = frozenset(_other_shapes(self.meta, self.compiled)) - self.separated
        """Positions of outputs whose port changed shape during compilation."""
        self.streams = int(self.compiled.get_property("NUM_STREAMS"))
        self.origins = shared_tensors.origins(self.compiled)

    def _find(self, reader: BlobReader, cache: CpuCache) -> bool:
        """Take the image from the cache; return whether it was there."""
        properties = properties_of(self.meta)
        self.key = cpu_cache.key_of(reader, self.meta, properties)
        if not self.key:
            return False
        self._kept = cache.find(core(), self.key, self.meta, properties)
        if self._kept is None:
            self.lacking = self.key
            return False
        self.compiled = self._kept.compiled
        return True

    def _read(self, xml: bytes, space: WeightSpace, modelled: Modelled) -> None:
        """Read and compile the model."""
        self._weights = np.frombuffer(space.view, dtype=np.uint8)
        self._space = space
        model = core().read_model(xml, ov.Tensor(self._weights, shared_memory=True))
        self.modelled = modelled(model, self.meta)
        self.computes_sizes = any(each.is_dynamic() for each in (model, *model_bodies.all_bodies(model)))
        remedies.correct(model)
        remedies.guard(model)
        if self.meta.precision == arithmetic.PRECISION:
            self._round(model)
        remedies.settle(model, Build(core(), self.meta, properties_of(self.meta)))
        self._build(model)
        if self.computes_sizes:
            self.key = self.lacking = ""

    def _build(self, model: ov.Model) -> None:
        """Compile a model that is ready for it."""
        self._compile_with_states(model)
        # many exported models compute sizes from constants alone, which OpenVINO has folded now
        self.computes_sizes = self.computes_sizes and (
            any(body.is_dynamic() for body in model_bodies.all_bodies(model)) or _is_dynamic(self.compiled)
        )
        self._model = model if self.computes_sizes else None
        self._empty: set[empty_tensors.Empty] = set()
        self._takes_nothing = False  # guarded for any set of zero dimensions
        self._is_behind = False  # `compiled` is older than `_model`

    def _compile_with_states(self, model: ov.Model) -> None:
        self._compile(model)
        if self.meta.dynamic_states:
            self.fused_states = FusedStates(model, self.compiled, self.meta.name)

    def renew(self) -> None:
        """Compile a model with dynamic dimensions again; requests made before must not be used.

        After a failed or cancelled inference OpenVINO's compiled model (2026.4) may permanently refuse valid
        shapes, or return results with the shapes of that inference, even in new requests. If compilation
        fails now, `mend` repeats it.
        """
        self._is_spoiled = self._model is not None
        with contextlib.suppress(RuntimeError, MemoryError):
            self.mend()

    def mend(self) -> None:
        """Retry a compilation that failed in `renew`. Raises `RuntimeError` or `MemoryError`."""
        if self._is_spoiled and self._model is not None:
            self._compile(self._model)
            self._is_spoiled = False

    def expect_empty(self, empty: empty_tensors.Empty) -> None:
        """Recompile the model if inputs with these dimensions at 0 require it.

        As after `renew`, earlier requests must not be used if `compilations` has changed.
        """
        if self._model is None or self._takes_nothing or empty in self._empty:
            return
        # a client may try all 2**n sets of dimensions
        is_last = len(self._empty) >= _MOST_EMPTY
        # a failed attempt may have guarded operations without compiling them
        was_behind, self._is_behind = self._is_behind, True
        if empty_tensors.guard(self._model, None if is_last else empty) or was_behind:
            self._compile_with_states(self._model)
        self._is_behind = False
        self._empty.add(empty)
        self._takes_nothing = is_last

    def _round(self, model: ov.Model) -> None:
        """Make `model` compute in f16, like the device."""
        from softnpu.emulator.arithmetic import common_passes
        from softnpu.emulator.arithmetic.rewriting import rewrite

        asked = arithmetic.Arithmetic.of(self.meta.config)
        try:
            common_passes.run(model, asked.kept)
            rewrite(model, asked)
        except (LookupError, TypeError, AttributeError) as error:  # an operation unlike the known ones
            raise RuntimeError(f"it cannot be rewritten for f16: {error!r}") from error

    def _compile(self, model: ov.Model) -> None:
        properties = properties_of(self.meta)
        if trace.active is not None and trace.active.layers:
            properties["PERF_COUNT"] = "YES"
        self.has_layers = properties.get("PERF_COUNT") == "YES"
        with memory_limit.lifted(), weight_pages.releasing(self._space):
            try:
                compiled = core().compile_model(model, "CPU", properties)
            except RuntimeError:
                if properties["NUM_STREAMS"] == "1":
                    raise
                properties["NUM_STREAMS"] = "1"  # with several, some models fail that run with one
                compiled = core().compile_model(model, "CPU", properties)
            self.compiled, used = remedies.recompiled(core(), model, compiled, properties)
        if quantised_subgraphs.UNFUSED.items() <= used.items():
            self.is_unfused = True
            self.key = self.lacking = ""
        self.compilations += 1


def _is_dynamic(compiled: ov.CompiledModel) -> bool:
    """Whether what OpenVINO executes has a tensor of a size that is not known.

    `Model.is_dynamic` (2026.4) fails for an input that nothing reads: it has no outputs there.
    """
    operations = compiled.get_runtime_model().get_ops()
    return any(port.partial_shape.is_dynamic for operation in operations for port in operation.outputs())


def _other_shapes(meta: GraphMeta, compiled: ov.CompiledModel) -> Iterator[int]:
    variables = meta.dynamic_states
    outputs = [
        argument
        for index, argument in enumerate(meta.arguments)
        if not argument.input and argument.shape_of < 0 and index not in variables
    ]
    for position, (argument, port) in enumerate(zip(outputs, compiled.outputs, strict=True)):
        if not argument.is_dynamic and port.partial_shape != ov.PartialShape(list(argument.shape)):
            yield position
