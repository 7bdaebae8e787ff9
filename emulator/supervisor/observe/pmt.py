"""Intel's platform monitoring technology: what the processor tells of its NPU, as intel-npu-smi reads it.

The layouts are those of intel/linux-npu-driver (tools/intel-npu-smi). Only the work point of an emulated
device is known: clock and tiles. A region ends after it, before energy, temperature and bandwidth: a reader
of these says that they are missing instead of reading zeros.
"""

from __future__ import annotations

from typing import NamedTuple

from softnpu.emulator.interface.messages import DeviceInfo


class _Layout(NamedTuple):
    guid: str
    work_point: int
    """Offset of a word of 64 bits: clock in bits 0 to 7, tiles in bits 16 to 23."""
    clock_mhz: float
    """Unit of the clock."""


_LAYOUTS = {
    "3720": _Layout("0x130670b2", 0x68, 100 / 3),
    "4000": _Layout("0x3072005", 0x18, 25),
    "5010": _Layout("0x3086000", 0x18, 25),
    "5020": _Layout("0x308d000", 0x18, 25),
}


def identity(info: DeviceInfo) -> dict[str, str] | None:
    """Return the files that tell a device's telemetry; None of an unknown layout."""
    layout = _LAYOUTS.get(info.platform)
    if layout is None:
        return None
    return {"guid": layout.guid, "size": str(layout.work_point + 8), "offset": "0"}


def telemetry(info: DeviceInfo, works: bool) -> bytes:
    """Return the region of a device that works or rests."""
    layout = _LAYOUTS[info.platform]
    word = round(info.core_clock_mhz / layout.clock_mhz) | info.tiles << 16 if works else 0
    return bytes(layout.work_point) + word.to_bytes(8, "little")
