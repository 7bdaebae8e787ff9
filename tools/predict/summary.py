"""The lines that answer first: will it run, will it be right, how fast, what bounds it, what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from softnpu.emulator.platforms import PLATFORMS
from softnpu.emulator.prediction.support.findings import Support, Verdict
from softnpu.emulator.prediction.timing import Band, Bound
from softnpu.emulator.prediction.timing import Prediction as Timing
from softnpu.emulator.prediction.timing.host import HOSTS
from softnpu.tools.predict.prediction import Prediction
from softnpu.tools.predict.right.measuring import NOTHING
from softnpu.tools.predict.right.result import Right, Rightness
from softnpu.tools.predict.speed_section import Speed
from softnpu.tools.shared.console import format_count, format_time

_US: Final = 1e6
_BOUNDS: Final[Mapping[str, str]] = {
    Bound.COMPUTE: "arithmetic of the DPU",
    Bound.SHAVE: "software kernels",
    Bound.MEMORY: "memory",
    Bound.OVERHEAD: "starting layers",
}
_HOST: Final = "the host"
_LONG: Final = 40
_VERDICTS: Final = {Verdict.TAKES: "yes", Verdict.REFUSES: "no", Verdict.UNKNOWN: "not known"}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, in parts by platform where these differ. `tone` is good, bad, warn or empty."""

    question: str
    answers: tuple[str, ...]
    tone: str = ""

    @property
    def answer(self) -> str:
        """The whole answer on one line."""
        return "; ".join(self.answers)


def summarise(prediction: Prediction) -> tuple[Line, ...]:
    """Return the lines of the questions that were asked, at most five."""
    lines: list[Line] = []
    answers = prediction.answers
    if "support" in answers:
        lines.append(_runs(prediction.support))
    if "right" in answers:
        lines.append(_right(next(iter(prediction.right.values()))))
    if "speed" in answers:
        lines += [_fast(prediction.speed), _bound(prediction.speed)]
    lines.append(_first(prediction))
    return tuple(lines)


def names(platforms: Sequence[str]) -> str:
    """Return codenames."""
    return ", ".join(PLATFORMS[platform].codename for platform in platforms)


def labels(paths: Sequence[Path]) -> list[str]:
    """Return names that differ: stems, with as many folders before them as that takes, from the end."""
    for count in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        found = [str(Path(*path.parts[-count:]).with_suffix("")) for path in paths]
        if len(set(found)) == len(found):
            return found
    return [str(path) for path in paths]  # the same file twice, or one that differs in its suffix


def _runs(support: Mapping[str, Support]) -> Line:
    parts = []
    for verdict in (Verdict.REFUSES, Verdict.UNKNOWN, Verdict.TAKES):
        alike = [platform for platform, each in support.items() if each.verdict is verdict]
        if not alike:
            continue
        text = f"{_VERDICTS[verdict]}: {names(alike)}"
        reasons = [each.found for each in support[alike[0]].findings if each.verdict is verdict]
        if reasons and verdict is not Verdict.TAKES:
            more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            text += f" ({reasons[0]}{more})"
        parts.append(text)
    verdicts = {each.verdict for each in support.values()}
    tone = "bad" if Verdict.REFUSES in verdicts else "warn" if Verdict.UNKNOWN in verdicts else "good"
    return Line(question="will it run", answers=tuple(parts), tone=tone)


def _right(right: Right) -> Line:
    question = "will it be right"
    if right.verdict is Rightness.UNKNOWN:
        return Line(question=question, answers=(f"not known: {right.obstacle}",), tone="warn")
    worst = max((each.error for each in right.outputs), key=lambda error: error.worst, default=NOTHING)
    seen = f"{format_count(right.samples, 'sample')}, {right.inputs}"
    if right.nan:
        seen += f"; {format_count(right.nan, 'element')} NaN in f32 already"
    if right.verdict is Rightness.WRONG:
        causes = ", ".join(f"{_end_of(each.layer)} {each.trouble}" for each in right.causes[:2])
        more = f", and {len(right.causes) - 2} more" if len(right.causes) > 2 else ""
        because = f": {causes}{more}" if causes else ""
        return Line(question=question, answers=(f"no, off by {worst}{because} ({seen})",), tone="bad")
    return Line(question=question, answers=(f"yes, at most {worst} off ({seen})",), tone="good")


def _end_of(name: str) -> str:
    """Return the end of a long name, which distinguishes it."""
    return name if len(name) <= _LONG else f"…{name[1 - _LONG :]}"


def _fast(speeds: Mapping[str, Speed]) -> Line:
    parts, unknown = [], []
    for platform, speed in speeds.items():
        if (timing := speed.all_tiles) is None:
            unknown.append(platform)
            continue
        low, value, high = (format_time(us / _US) for us in _ends(timing.latency_us))
        named = names([platform])
        host = "" if timing.host == named else f" {'in a' if timing.host in HOSTS else 'with'} {timing.host}"
        parts.append(f"{named} {value} ({low} to {high}){host}, {timing.throughput.value:.0f} a second")
    if not parts:
        return Line(question="how fast", answers=(f"not known: {_obstacle(speeds)}",), tone="warn")
    if unknown:
        parts.append(f"{names(unknown)} not known, as no source has its speed")
    return Line(question="how fast", answers=tuple(parts))


def _ends(band: Band) -> tuple[float, float, float]:
    return band.low, band.value, band.high


def _obstacle(speeds: Mapping[str, Speed]) -> str:
    return next((speed.obstacle for speed in speeds.values() if speed.obstacle), "")


def _bound(speeds: Mapping[str, Speed]) -> Line:
    found: dict[str, list[str]] = {}
    for platform, speed in speeds.items():
        if speed.all_tiles is not None:
            what, share = _largest(speed.all_tiles)
            found.setdefault(what, []).append(f"{names([platform])} {share:.0%}")
    parts = [f"{what} ({', '.join(shares)} of the time)" for what, shares in found.items()]
    return Line(question="what bounds it", answers=tuple(parts) or ("not known",))


def _largest(timing: Timing) -> tuple[str, float]:
    """Return what takes the largest part of a lone inference, the host included."""
    on_host = timing.host_us / timing.latency_us.value
    shares = {_BOUNDS[bound]: share * (1 - on_host) for bound, share in timing.shares.items()}
    return max({**shares, _HOST: on_host}.items(), key=lambda each: each[1])


def _first(prediction: Prediction) -> Line:
    question = "change first"
    if not prediction.hints:
        return Line(question=question, answers=("nothing that would help much is known",))
    hint = prediction.hints[0]
    only = "" if hint.platforms == prediction.platforms else f" ({names(hint.platforms)})"
    return Line(question=question, answers=(f"{hint.text}{only}: {hint.reason}",))
