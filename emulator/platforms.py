"""The platforms that can be emulated: identity and size of each device.

Device ids, names, slices, SIMD width and timer are those that the real driver reports; tiles and clocks
are the published ones of each generation. 5020 is a 5010 with one tile (tables of the NPU
compiler; device id of Intel's drivers).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

import msgspec

from softnpu.emulator.common import private_memory
from softnpu.emulator.interface.messages import DeviceInfo
from softnpu.emulator.interface.result import ZeResult, refuse


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """One NPU generation. Clock in MHz, timer in nanoseconds a tick.

    `also`: other processors with this NPU. `timed`: public figures allow to predict times.
    """

    number: str
    codename: str
    also: tuple[str, ...] = ()
    timed: bool = True
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
            also=("Arrow Lake",),
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
        Platform(
            number="5020",
            codename="Wildcat Lake",
            timed=False,
            device_id=0xFD3E,
            tiles=1,
            slices=1,
            simd_width=8192,
            eus_per_subslice=12288,
            core_clock_mhz=1950,
            timer_ns_per_tick=52.0,
        ),
    )
}
DEFAULT_PLATFORM = "4000"
DEVICE_NAME = "Intel(R) AI Boost"


def _folded(name: str) -> str:
    return name.strip().lower().replace(" ", "-").replace("_", "-")


CODENAMES: Final = {
    _folded(name): platform for platform in PLATFORMS.values() for name in (platform.codename, *platform.also)
}
"""The platform of each codename, as it is written in options and variables."""
_WITHOUT_SIZE: Final = ("6010", "nova-lake")  # OpenVINO's plugin knows the name, the kernel its device id


def find_platform(name: str) -> Platform | None:
    """Return the platform of a number or codename; None for an unknown one."""
    return PLATFORMS.get(name) or CODENAMES.get(_folded(name))


def check_platform(name: str) -> Platform:
    """Return the platform of a number or codename; refuses an unknown one with the list of known ones."""
    platform = find_platform(name)
    if platform is None:
        import difflib

        near = difflib.get_close_matches(_folded(name[:100]), (*CODENAMES, *PLATFORMS), n=1)
        is_named = _folded(name) in _WITHOUT_SIZE
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "device platform",
            found=f"{name!r}" + (", whose tiles, clock and timer no public source has" if is_named else ""),
            expected=f"{' or '.join(PLATFORMS)}, or a codename: {', '.join(CODENAMES)}",
            hint=f"did you mean {near[0]}?" if near and not is_named else "",
        )
    return platform


def numbers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the platforms' numbers for numbers and codenames; unknown names as they are."""
    return tuple(name if (found := find_platform(name)) is None else found.number for name in names)


def title(number: str) -> str:
    """Return a platform's number with its codename, if it is known."""
    platform = PLATFORMS.get(number)
    return number if platform is None else f"{number} ({platform.codename})"


def usable_memory() -> int:
    """Bytes that a device may offer: the RAM of the machine, or the limit of this control group."""
    return private_memory.usable()


def describe(index: int, number: str, memory_total: int) -> DeviceInfo:
    """Return the device as the handshake reports it."""
    fields = msgspec.structs.asdict(check_platform(number))
    for ours in ("codename", "also", "timed"):
        del fields[ours]
    return DeviceInfo(
        index=index,
        platform=fields.pop("number"),
        name=DEVICE_NAME,
        revision=0,
        memory_total=memory_total,
        uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"softnpu-{number}-{index}").bytes,
        **fields,
    )
