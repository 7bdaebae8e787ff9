"""How fast? The account of `emulator/prediction/timing`, for all tiles and for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from softnpu.emulator.interface.result import Refused
from softnpu.emulator.prediction import timing
from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.reader import read_fused_graph
from softnpu.emulator.prediction.timing.wins import Win, wins
from softnpu.tools.predict.section import Hint, Subject
from softnpu.tools.shared.console import format_bytes, format_time, make_table, out, print_line

_SLOWEST: Final = 5
_LARGEST: Final = 4
_US: Final = 1e6


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """A model's speed on one platform. `all_tiles` and `one_tile` are None if `obstacle` says why.

    `wins` are changes that make it faster on all tiles, by the same account.
    """

    all_tiles: timing.Prediction | None = None
    one_tile: timing.Prediction | None = None
    wins: tuple[Win, ...] = ()
    obstacle: str = ""


class SpeedSection:
    """Times of each layer and of the whole, their bounds, and memory."""

    key = "speed"
    title = "How fast?"
    same_for_all = False

    def answer(self, subject: Subject, platform: str) -> Speed:
        """Return the device model's answer; none for open shapes."""
        if self.key not in subject.shared:
            fused = read_fused_graph(subject.model)
            subject.shared[self.key] = replace(fused, name=subject.name)
        graph: Graph = subject.shared[self.key]
        try:
            all_tiles = timing.predict(graph, platform, host=subject.host)
            single = timing.predict(graph, platform, tiles=1, host=subject.host)
        except Refused as refusal:
            return Speed(obstacle=str(refusal.info))
        return Speed(all_tiles=all_tiles, one_tile=single, wins=wins(graph, all_tiles, subject.host))

    def hints(self, answers: Mapping[str, Speed]) -> Sequence[Hint]:
        """Return the few changes that save most, once for all platforms that benefit."""
        platforms: dict[str, list[str]] = {}
        reasons: dict[str, str] = {}
        best: dict[str, float] = {}
        for platform, speed in answers.items():
            for win in speed.wins:
                platforms.setdefault(win.text, []).append(platform)
                best[win.text] = max(best.get(win.text, 0.0), win.saved)
                reasons[win.text] = f"{win.reason}; saves up to {best[win.text]:.0%} of the time"
        ordered = sorted(best, key=lambda text: -best[text])[:_LARGEST]
        return [Hint(text, reasons[text], tuple(platforms[text])) for text in ordered]

    def show(self, answers: Mapping[str, Speed], *, details: bool) -> None:
        """Show a table of the platforms, the time bounds, the slowest layers; with `details` all of them."""
        known = {name: speed for name, speed in answers.items() if speed.all_tiles is not None}
        for obstacle in dict.fromkeys(speed.obstacle for speed in answers.values() if speed.obstacle):
            print_line(f"  not known: {obstacle}")
        if not known:
            return
        _show_times(known)
        for platform, speed in known.items():
            if speed.all_tiles is not None:
                _show_layers(platform, speed.all_tiles, details=details)
        print_line("  overhead: the fixed time to start a layer on its unit, longer than its computation")
        print_line("  shave: a software kernel on the SHAVE cores; compute: the DPU's MACs; memory: DDR, DMA")
        notes = [note for speed in known.values() if speed.all_tiles for note in speed.all_tiles.notes]
        for note in dict.fromkeys(notes):
            print_line(f"  note: {note}")


def _show_times(speeds: Mapping[str, Speed]) -> None:
    table = make_table(None, "platform", right=("tiles", "latency", "80 % between", "a second", "DDR"))
    for platform, speed in speeds.items():
        for predicted in (speed.all_tiles, speed.one_tile):
            if predicted is not None:
                latency = predicted.latency_us
                table.add_row(
                    platform,
                    str(predicted.tiles),
                    format_time(latency.value / _US),
                    f"{format_time(latency.low / _US)}, {format_time(latency.high / _US)}",
                    f"{predicted.throughput.value:.0f}",
                    format_bytes(predicted.memory.ddr_traffic),
                )
    out.print(table)


def _show_layers(platform: str, predicted: timing.Prediction, *, details: bool) -> None:
    shares = ", ".join(f"{share:.0%} {bound}" for bound, share in predicted.shares.items() if share >= 0.005)
    print_line("")
    on_host = format_time(predicted.host_us / _US)
    print_line(f"  {platform}, in a {predicted.host}: {on_host} on the host; on the device {shares}")
    slowest = predicted.slowest(len(predicted.layers) if details else _SLOWEST)
    table = make_table(None, "layer", "type", "unit", "waits for", right=("time",), names="layer")
    for each in slowest:
        table.add_row(each.name, each.type, each.unit, each.bound, format_time(each.time_us.value / _US))
    out.print(table)
