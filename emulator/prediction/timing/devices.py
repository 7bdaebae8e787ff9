"""The figures of each platform, each with its band and its source.

Rates are per tile and DPU cycle. `TABLE` means VPUNN (`intel/npu-nn-cost-model`), the vendor's own cost
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.platforms import title


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with the lowest and highest value supported by sources, its unit, and its source."""

    value: float
    low: float
    high: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """One platform. The DPU's rates hold for int8; f16 has half of each.

    `native`: its DPU's operations beside those of all platforms (VPUNN, `device_valid_valuesVPU5.h`).
    `measured`: the time of a model on it has been published. `host`: the computer whose figures these are.
    """

    platform: str
    tiles: int
    shaves_per_tile: int
    clock: Figure
    macs: Figure
    depthwise_macs: Figure
    elementwise: Figure
    cmx: Figure
    ddr: Figure
    dma: Figure
    native: frozenset[str]
    pads_channels: bool
    measured: bool
    host: str

    @property
    def shaves(self) -> int:
        """The number of all SHAVEs."""
        return self.tiles * self.shaves_per_tile

    def figures(self) -> Mapping[str, Figure]:
        """Return all figures by name, for reports."""
        names = ("clock", "macs", "depthwise_macs", "elementwise", "cmx", "ddr", "dma")
        return {name: getattr(self, name) for name in names}


_VPUNN = "VPUNN include/vpu/device_HW_characteristics_"
_VPUNN_5 = "VPUNN include/vpu/hw_characteristics/device_HW_characteristics_VPU5.h"
_TESTS_27 = "VPUNN tests/cpp/NPU27_regression_tests.cpp"
_TESTS_40 = "VPUNN tests/cpp/NPU40_regression_tests.cpp"
_RESOURCES = "npu_compiler platform_resources.hpp"
_KIB: Final = 1024

DEVICES: Final[Mapping[str, Device]] = {
    each.platform: each
    for each in (
        Device(
            platform="3720",
            tiles=2,
            shaves_per_tile=2,
            clock=Figure(1400, 1160, 1400, "MHz", f"11.5 TOPS; {_VPUNN}VPU2_7.h: 1300; seen: 1160"),
            macs=Figure(2048, 2048, 2048, "int8 MAC", f"{_VPUNN}VPU2_7.h"),
            depthwise_macs=Figure(77, 74, 80, "int8 MAC", f"{_TESTS_27}, kernels 3x3 to 11x11"),
            elementwise=Figure(28, 20, 36, "int8 elements", "inferred: 4000 with CMX words of 16 B"),
            cmx=Figure(1936 * _KIB, 1936 * _KIB, 2048 * _KIB, "bytes a tile", _RESOURCES),
            ddr=Figure(27, 23, 29, "GB/s", f"{_VPUNN}VPU2_7.h; band: reached by LLMs"),
            dma=Figure(31.2, 20, 62.4, "GB/s", "VPUNN: 32 B a cycle at 975 MHz, one of two ports"),
            native=frozenset(),
            pads_channels=True,
            measured=True,
            host="155H",
        ),
        Device(
            platform="4000",
            tiles=6,
            shaves_per_tile=2,
            clock=Figure(1950, 1700, 1950, "MHz", f"48 TOPS; {_VPUNN}VPU4.h: 1700"),
            macs=Figure(2048, 2048, 2048, "int8 MAC", f"{_VPUNN}VPU4.h"),
            depthwise_macs=Figure(104, 98, 160, "int8 MAC", f"{_TESTS_40}, kernels 3x3 to 7x7"),
            elementwise=Figure(36, 32, 40, "int8 elements", f"{_TESTS_40}, 250x7x64 in 3498 cycles"),
            cmx=Figure(1440 * _KIB, 1440 * _KIB, 1536 * _KIB, "bytes a tile", _RESOURCES),
            ddr=Figure(67, 45, 136, "GB/s", f"{_VPUNN}VPU4.h (45, later 136); reached by LLMs: 65 to 69"),
            dma=Figure(62.1, 45, 124, "GB/s", "VPUNN: 64 B a cycle at 971 MHz, one of two ports"),
            native=frozenset(),
            pads_channels=True,
            measured=True,
            host="288V",
        ),
        Device(
            platform="5010",
            tiles=3,
            shaves_per_tile=2,
            clock=Figure(1950, 1950, 2035, "MHz", f"{_VPUNN_5}; 50 TOPS: 2035"),
            macs=Figure(4096, 4096, 4096, "int8 MAC", _VPUNN_5),
            depthwise_macs=Figure(
                104, 52, 208, "int8 MAC", f"inferred: that of 4000; {_VPUNN_5}: 32 PPEs, not 64"
            ),
            elementwise=Figure(
                36, 18, 72, "int8 elements", f"inferred: that of 4000; {_VPUNN_5}: 32 PPEs, not 64"
            ),
            cmx=Figure(
                1440 * _KIB, 1440 * _KIB, 1536 * _KIB, "bytes a tile", "VPUNN: 1536 KiB; usable as on 4000"
            ),
            ddr=Figure(45, 45, 136, "GB/s", f"{_VPUNN_5} (45, later 136); reached: not published"),
            dma=Figure(71.3, 45, 143, "GB/s", "VPUNN: 64 B a cycle at 1114 MHz, one of two ports"),
            native=frozenset(("Sigmoid", "Tanh", "Swish", "Gelu", "HSwish", "Multiply", "MVN")),
            pads_channels=False,
            measured=False,
            host="Panther Lake",
        ),
    )
}


def find_device(platform: str) -> Device:
    """Return the figures of a platform; refuse an unknown one with the list of known ones."""
    device = DEVICES.get(platform)
    if device is None:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "platform to predict",
            found=f"{title(platform)}, whose speed no public source has",
            expected=" or ".join(DEVICES),
        )
    return device
