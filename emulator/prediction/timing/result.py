"""What a prediction of speed says, typed: times with bands, what bounds them, memory, sources."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Bound(StrEnum):
    """What a group waits for most."""

    COMPUTE = "compute"
    MEMORY = "memory"
    SHAVE = "shave"
    OVERHEAD = "overhead"


class Band(msgspec.Struct, frozen=True):
    """A predicted figure: of 100 published measurements about 80 lie between `low` and `high`."""

    value: float
    low: float
    high: float


class LayerTime(msgspec.Struct, frozen=True, kw_only=True):
    """One fused group: the device stores once behind it. Times in microseconds, sizes in bytes.

    `operations` are the friendly names of what is fused, `name` that of the one that counts. `compute_us` and
    `memory_us` overlap; `time_us` has both, and the overhead. `macs` are those of the model, without padding.
    `utilization` is the part of the DPU's MACs that do useful work while the DPU computes; None elsewhere.
    """

    name: str
    type: str
    kernel: str
    unit: str
    operations: tuple[str, ...]
    precision: str
    time_us: Band
    compute_us: float
    memory_us: float
    overhead_us: float
    bound: Bound
    macs: int
    utilization: float | None
    weights_bytes: int
    activation_bytes: int
    ddr_bytes: int
    spilled_bytes: int
    provider: str
    source: str


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a model needs, in bytes. `spilled` goes to DDR and back for lack of CMX."""

    weights: int
    largest_activations: int
    inputs_and_outputs: int
    ddr_traffic: int
    spilled: int
    cmx: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a model is on one platform with so many tiles.

    `device_us` is the sum of the layers: the time of an inference when others follow it closely. `latency_us`
    is that of one at a time, `throughput` inferences a second. `shares` is the part of `device_us` that each
    bound has. `energy_joules` is None: nobody has published what these devices draw. `notes` say what the
    figures rest on.
    """

    model: str
    platform: str
    tiles: int
    precision: str
    device_us: Band
    latency_us: Band
    throughput: Band
    macs: int
    memory: Memory
    shares: dict[str, float]
    layers: tuple[LayerTime, ...]
    calibrated: str
    energy_joules: Band | None
    notes: tuple[str, ...]

    def slowest(self, count: int) -> tuple[LayerTime, ...]:
        """The layers that take longest, longest first."""
        return tuple(sorted(self.layers, key=lambda each: -each.time_us.value)[:count])
