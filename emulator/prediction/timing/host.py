"""The computers that a platform's NPU sits in: one name of a platform has different clocks and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.platforms import title
from softnpu.emulator.prediction.timing.devices import Device, Figure


@dataclass(frozen=True, slots=True)
class Host:
    """A computer. None is the figure of the platform, or of the calibration.

    `clock` is that of the NPU in MHz, `ddr` the GB/s that it reaches. The processor copies inputs and outputs
    at `copy_gbs`, and the program around an inference takes `call_us`.
    """

    name: str
    platform: str | None = None
    clock: float | None = None
    ddr: float | None = None
    copy_gbs: float | None = None
    call_us: float | None = None
    source: str = ""

    def on(self, device: Device) -> Device:
        """Return the device as it is in this computer; refuse another platform's."""
        if self.platform not in (None, device.platform):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"host {self.name}",
                found=f"platform {title(device.platform)}",
                expected=f"{title(str(self.platform))}, which it has",
            )
        clock = _given(device.clock, self.clock, self.source)
        return replace(device, clock=clock, ddr=_given(device.ddr, self.ddr, self.source))


def _given(figure: Figure, value: float | None, source: str) -> Figure:
    if value is None:
        return figure
    return Figure(value, min(value, figure.low), max(value, figure.high), figure.unit, source)


HOSTS: Final[Mapping[str, Host]] = {
    each.name: each
    for each in (
        Host("155H", "3720", source="Core Ultra 7 155H: 11.5 TOPS"),
        Host("265KF", "3720", clock=1587, ddr=32, source="Core Ultra 7 265KF: 13 TOPS; VGG13 in 11.95 ms"),
        Host("288V", "4000", source="Core Ultra 9 288V: 48 TOPS"),
        Host("258V", "4000", clock=1910, source="Core Ultra 7 258V: 47 TOPS"),
        Host("Panther Lake", "5010", source="no model's time is published"),
    )
}
"""The computers of published measurements."""
_FIGURES: Final = ("clock", "ddr", "copy", "call")
_FORM: Final = "figures: ddr=GB/s,clock=MHz,copy=GB/s,call=us"


def parse_host(text: str) -> Host:
    """Return the host of `265KF`, `ddr=90,clock=1400`, or `265KF,ddr=90`; refuse what is neither."""
    host = Host(name=text, source="given")
    for part in text.split(","):
        key, given, value = part.strip().partition("=")
        if not given:
            known = next((each for each in HOSTS.values() if each.name.lower() == key.lower()), None)
            if known is None:
                near = get_close_matches(key.upper(), [each.upper() for each in HOSTS], n=1)
                expected = f"one of {', '.join(HOSTS)}, or {_FORM}"
                raise _refused(part, expected, f"did you mean {near[0]}?" if near else "")
            host = replace(known, name=text)
            continue
        if key not in _FIGURES:
            near = get_close_matches(key, _FIGURES, n=1)
            raise _refused(part, f"one of {', '.join(_FIGURES)}", f"did you mean {near[0]}?" if near else "")
        number = _positive(part, value)
        host = Host(
            text,
            host.platform,
            clock=number if key == "clock" else host.clock,
            ddr=number if key == "ddr" else host.ddr,
            copy_gbs=number if key == "copy" else host.copy_gbs,
            call_us=number if key == "call" else host.call_us,
            source="given",
        )
    return host


def _positive(part: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise _refused(part, "a positive number: MHz of clock, GB/s of ddr and copy, microseconds of call")
    return number


def _refused(part: str, expected: str, hint: str = "") -> Exception:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, "host", found=repr(part), expected=expected, hint=hint)
