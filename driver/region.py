"""`ze_copy_region_t`: a box of bytes, of which the NPU copies two dimensions."""

from __future__ import annotations

from typing import NamedTuple

from softnpu.driver.errors import error, invalid_size
from softnpu.emulator.interface.result import ZeResult


class CopyRegion(NamedTuple):
    """Origin and size in bytes (x, width) and rows (y, height); one slice (z 0, depth 1)."""

    origin_x: int
    origin_y: int
    origin_z: int
    width: int
    height: int
    depth: int = 1

    def _start(self, pitch: int) -> int:
        """Return the bytes from the start of the memory to the first byte of the region."""
        return self.origin_y * pitch + self.origin_x


def check_region(
    call: str, target: CopyRegion, target_pitch: int, source: CopyRegion, slice_pitches: tuple[int, int]
) -> None:
    """Reject regions that the device cannot copy, or that do not match.

    As in Intel's driver, of the pitches only the target's is compared with the width: rows that are read may
    overlap.
    """
    size = (target.width, target.height, target.depth)
    if not target.width or size != (source.width, source.height, source.depth):
        raise invalid_size(
            call,
            "copy region",
            found=f"target {target.width} x {target.height}, source {source.width} x {source.height}",
            expected="two regions of one size, at least 1 wide",
        )
    if target_pitch < target.width:
        raise invalid_size(
            call,
            "copy region",
            found=f"target pitch {target_pitch}, width {target.width}",
            expected="a pitch of at least the width",
        )
    for region in (target, source):
        if region.depth != 1 or region.origin_z or any(slice_pitches):
            raise error(
                call,
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                "copy region",
                found=f"depth {region.depth}, slice {region.origin_z}, slice pitches {slice_pitches}",
                expected="two dimensions: depth 1, no slice pitch",
            )
