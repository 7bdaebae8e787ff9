"""The platforms that can be emulated: identity and size of each device.

Device ids, names, slices, SIMD width and timer are those that the real driver reports; tiles and clocks
are the published ones of each generation.
"""

from __future__ import annotations

import uuid

import msgspec

from softnpu.emulator.common import private_memory
from softnpu.emulator.interface.messages import DeviceInfo
from softnpu.emulator.interface.result import ZeResult, refuse


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """One NPU generation. Clock in MHz, timer in nanoseconds a tick."""

    number: str
    codename: str
    device_id: int
    tiles: int
    slices: int
    simd_width: int
    eus_per_subslice: int
    core_clock_mhz: int
    timer_ns_per_tick: float


PLATFORMS = {
    platform.number: platform
    for platform in (
        Platform(
            number="3720",
            codename="Meteor Lake",
            device_id=0x7D1D,
            tiles=2,
            slices=2,
            simd_width=4096,
            eus_per_subslice=4096,
            core_clock_mhz=1400,
            timer_ns_per_tick=26.0,
        ),
        Platform(
            number="4000",
            codename="Lunar Lake",
            device_id=0x643E,
            tiles=6,
            slices=6,
            simd_width=4096,
            eus_per_subslice=12288,
            core_clock_mhz=1950,
            timer_ns_per_tick=52.0,
        ),
        Platform(
            number="5010",
            codename="Panther Lake",
            device_id=0xB03E,
            tiles=3,
            slices=3,
            simd_width=8192,
            eus_per_subslice=12288,
            core_clock_mhz=1950,
            timer_ns_per_tick=52.0,
        ),
    )
}
DEFAULT_PLATFORM = "4000"
DEVICE_NAME = "Intel(R) AI Boost"


def check_platform(number: str) -> Platform:
    """Return the platform of this number; refuses an unknown one with the list of known ones."""
    platform = PLATFORMS.get(number)
    if platform is None:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "device platform",
            found=f"{number!r}",
            expected=" or ".join(PLATFORMS),
        )
    return platform


def usable_memory() -> int:
    """Bytes that a device may offer: the RAM of the machine, or the limit of this control group."""
    return private_memory.usable()


def describe(index: int, number: str, memory_total: int) -> DeviceInfo:
    """Return the device as the handshake reports it."""
    fields = msgspec.structs.asdict(check_platform(number))
    del fields["codename"]
    return DeviceInfo(
        index=index,
        platform=fields.pop("number"),
        name=DEVICE_NAME,
        revision=0,
        memory_total=memory_total,
        uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"softnpu-{number}-{index}").bytes,
        **fields,
    )
