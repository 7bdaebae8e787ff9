"""The result of a speed prediction: times with bands, what bounds them, memory, sources."""

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

    `operations` are the friendly names of the fused operations, `name` that of the root. `compute_us` and
    `memory_us` overlap; `time_us` has both, and the overhead. `macs` are those of the model, without padding.
    `utilization` is the share of useful MACs while the DPU computes; None elsewhere.
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
    """The memory needs of a model, in bytes. `spilled` goes to DDR and back for lack of CMX."""

    weights: int
    largest_activations: int
    inputs_and_outputs: int
    ddr_traffic: int
    spilled: int
    cmx: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a model on a number of tiles of one platform.

    `host` is the computer around it. `device_us` is the sum of the layers: the time of an inference among
    back-to-back ones. `latency_us` is that of a lone one, of which `host_us` is spent on the host;
    `throughput` inferences per second. `shares` is the share of each bound in
    `device_us`. `energy_joules` is None: the power of these devices is unpublished. `notes` state the basis
    of the figures.
    """

    model: str
    platform: str
    tiles: int
    host: str
    precision: str
    device_us: Band
    latency_us: Band
    host_us: float
    throughput: Band
    macs: int
    memory: Memory
    shares: dict[str, float]
    layers: tuple[LayerTime, ...]
    calibrated: str
    energy_joules: Band | None
    notes: tuple[str, ...]

    def slowest(self, count: int) -> tuple[LayerTime, ...]:
        """Return the slowest layers, slowest first."""
        return tuple(sorted(self.layers, key=lambda each: -each.time_us.value)[:count])
