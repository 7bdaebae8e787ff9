"""Devices as Ray resources: a custom resource for each platform.

Not `NPU`: Ray uses that name for another vendor, whose variables it would set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE
from softnpu.emulator.platforms import DEFAULT_PLATFORM, check_platform, numbers
from softnpu.farm.errors import FarmError

PREFIX = "softnpu_"
_MOST = 8  # devices of a daemon


def resource(platform: str = DEFAULT_PLATFORM) -> str:
    """Return the Ray resource of a platform's devices: `softnpu_4000`."""
    return f"{PREFIX}{check_platform(platform).number}"


def resources_of(platforms: Sequence[str]) -> dict[str, int]:
    """Return the resources of a node with devices of these platforms."""
    known = numbers(platforms)
    return {resource(platform): known.count(platform) for platform in known}


def wanted(devices: float, platform: str) -> dict[str, float]:
    """Return the request of a task or an actor: whole devices, or a share of one."""
    if not (0 < devices < 1 or devices in range(1, _MOST + 1)):
        raise FarmError(
            "devices",
            found=repr(devices),
            expected=f"1 to {_MOST} whole devices of a node, or a share of one between 0 and 1",
        )
    return {resource(platform): devices}


@dataclass(frozen=True)
class Assigned:
    """The devices assigned by Ray to a worker. `share`: of each, in thousandths."""

    platform: str
    count: int
    share: int = WHOLE_DEVICE

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> Assigned | None:
        """Return the devices among a worker's resources; None without any."""
        platforms = {
            name.removeprefix(PREFIX): amount
            for name, amount in resources.items()
            if name.startswith(PREFIX) and amount > 0
        }
        if not platforms:
            return None
        if len(platforms) > 1:
            raise FarmError(
                "resources",
                found=f"devices of platforms {', '.join(sorted(platforms))} in one worker",
                expected="one platform a worker",
                hint="use an actor for each platform",
            )
        ((platform, amount),) = platforms.items()
        if amount >= 1:
            return cls(platform, round(amount))
        return cls(platform, 1, max(1, round(amount * WHOLE_DEVICE)))
