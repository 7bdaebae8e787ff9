"""What an inference takes on the modelled device, as whoever loads a model gets to know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import openvino as ov

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.interface.profiling import LayerRecord, Profile


class ModelledTime(NamedTuple):
    """What an inference takes on the modelled device: on so many tiles, in nanoseconds, layer by layer."""

    tiles: int
    ns: int
    layers: tuple[LayerRecord, ...]

    def profile(self, end_ns: int) -> Profile:
        """Return the profile of an inference that ends at `end_ns`."""
        return Profile(end_ns - self.ns, end_ns, self.layers, 0)


Modelled = Callable[[ov.Model, GraphMeta], ModelledTime | None]
"""The modelled time of a model; None if nobody asks for it, or nobody knows it."""


def host_times(_model: ov.Model, _meta: GraphMeta) -> ModelledTime | None:
    """Return none: a device that shows the host's clock."""
    return None
