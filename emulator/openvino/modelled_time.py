"""The predicted duration of an inference on the modelled device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import openvino as ov

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.interface.profiling import LayerRecord, Profile


class ModelledTime(NamedTuple):
    """The duration of an inference on the modelled device: tiles used, nanoseconds, layer by layer."""

    tiles: int
    ns: int
    layers: tuple[LayerRecord, ...]

    def profile(self, end_ns: int) -> Profile:
        """Return the profile of an inference that ends at `end_ns`."""
        return Profile(end_ns - self.ns, end_ns, self.layers, 0)


Modelled = Callable[[ov.Model, GraphMeta], ModelledTime | None]
"""Returns the modelled time of a model; None if not requested or unknown."""


def host_times(_model: ov.Model, _meta: GraphMeta) -> ModelledTime | None:
    """Return None: the device shows the host's clock."""
    return None
