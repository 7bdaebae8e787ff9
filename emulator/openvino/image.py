"""Compile an image with OpenVINO's CPU device, or take it from the cache."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import openvino as ov

from softnpu.emulator.arithmetic import settings as arithmetic
from softnpu.emulator.blob.constant_digests import check_constants, digests_in
from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement, offsets_in_space, with_actual_offsets
from softnpu.emulator.interface import trace
from softnpu.emulator.openvino.c_models import CModel
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.compilation import Compilation, computes_sizes, other_shapes
from softnpu.emulator.openvino.defects import remedies, rounded_states, shared_tensors
from softnpu.emulator.openvino.defects.defect import Build
from softnpu.emulator.openvino.fused_states.states import FusedStates
from softnpu.emulator.openvino.modelled_time import Modelled, ModelledTime
from softnpu.emulator.openvino.runtime import core, properties_of
from softnpu.emulator.openvino.weights.weight_files import GuardedWeights

MOST_COPIED: Final = 8 << 20
"""Bytes of constants of the largest image eligible for a C model."""
_OPERATION: Final = re.compile(rb'<layer [^>]*type="(\w+)"')


class LoadedImage(Compilation):
    """A compiled model on the device, shared by all graphs of this content.

    Constants are used in place: their sources and the blob stay mapped as long as the image lives. `check`
    compares them with the digests in the blob first, and names mismatches. `streams`: number of inferences at
    once, each with its share of the threads. `key`: its key in `cache`, empty if it is not cached; `lacking`:
    the same, empty if it was loaded from there.
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
            check_constants(
                reference, outside, digests_in(space), f"model '{self.meta.name}'", lambda _: None
            )
        self.weights_size = 0 if reference is None else reference.size
        self._reader = reader if self.weights_size <= MOST_COPIED else None
        self.c_model: CModel | None = None  # once verified: see `c_model_maker`
        self.c_model_asked = False
        self.key = self.lacking = ""
        self.weights: GuardedWeights | None = None
        self.modelled: ModelledTime | None = None
        self.fused_states: FusedStates | None = None
        traced = trace.active is not None and trace.active.layers  # cached images have no layer profile
        if cache is None or traced or not self._find(reader, cache):
            xml = with_actual_offsets(bytes(reader.read(Section.IR)), actual)
            self._read(xml, space, modelled)
        self._examine()

    def operations(self) -> frozenset[str]:
        """Return the types of its model's operations, bodies included; none of a large model."""
        if self._reader is None:
            return frozenset()
        xml = bytes(self._reader.read(Section.IR))
        return frozenset(kind.decode() for kind in _OPERATION.findall(xml))

    def _examine(self) -> None:
        """Look at the ports of what was compiled."""
        self.separated = rounded_states.positions(self.meta, self.compiled)
        self.unbound = frozenset(other_shapes(self.meta, self.compiled)) - self.separated
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
        self.computes_sizes = computes_sizes(model)
        remedies.correct_and_guard(model)
        if self.meta.precision == arithmetic.PRECISION:
            self._round(model)
        remedies.settle(model, Build(core(), self.meta, properties_of(self.meta)))
        self._build(model)
        if self.computes_sizes:
            self.key = self.lacking = ""

    def _build(self, model: ov.Model) -> None:
        """Compile a model that is ready for it."""
        self._begin(model)

    def _compile(self, model: ov.Model) -> None:
        super()._compile(model)
        if self.is_unfused:
            self.key = self.lacking = ""

    def _compile_whole(self, model: ov.Model) -> None:
        super()._compile_whole(model)
        if self.meta.dynamic_states:
            self.fused_states = FusedStates(model, self.compiled, self.meta.name)

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
