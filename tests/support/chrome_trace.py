"""A strict reader of traces in Chrome's format: fails on anything that an importer may reject."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"ph", "s", "name", "cat", "pid", "tid", "ts", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "t": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
}
_ROUNDING_US = 0.0021


class ChromeTrace:
    """The checked events of a file: fields, nesting of spans on each track, order and place of arrows."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text())
        assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
        self.said: dict[str, Any] = document["otherData"]
        self.events: list[Event] = document["traceEvents"]
        for event in self.events:
            assert set(event) - {"args"} == _FIELDS[event["ph"]] - {"args"}, event
            assert isinstance(event["name"], str), event
            assert event["name"], event
            assert all(isinstance(event[key], int) for key in ("pid", "tid")), event
            assert event["ph"] == "M" or isinstance(event["ts"], int | float), event
            assert event["ph"] != "C" or isinstance(event["args"]["value"], int), event
        times = [event["ts"] for event in self.events if event["ph"] != "M"]
        assert times == sorted(times)
        self.spans = self.of("X")
        self._check_nesting()
        self._check_flows()

    def of(self, phase: str, category: str = "") -> list[Event]:
        """Return the events of a phase, filtered by category if one is given."""
        found = [event for event in self.events if event["ph"] == phase]
        return [event for event in found if not category or event["cat"] == category]

    def names(self, category: str) -> Counter[str]:
        """Count the spans or instants of each name."""
        return Counter(event["name"] for event in self.events if event.get("cat") == category)

    def inside(self, outer: str, inner: str) -> bool:
        """Return whether a span named `inner` lies within one named `outer` on the same track."""
        return any(
            one["name"] == inner and any(other["name"] == outer for other in self._around(one, one["ts"]))
            for one in self.spans
        )

    def _around(self, event: Event, time: float) -> list[Event]:
        return [
            span
            for span in self.spans
            if (span["pid"], span["tid"]) == (event["pid"], event["tid"])
            and span["ts"] - _ROUNDING_US <= time <= span["ts"] + span["dur"] + _ROUNDING_US
        ]

    def _check_nesting(self) -> None:
        open_ends: dict[tuple[int, int], list[float]] = defaultdict(list)
        for span in self.spans:
            track = span["pid"], span["tid"]
            ends, end = open_ends[track], span["ts"] + span["dur"]
            while ends and ends[-1] <= span["ts"] + _ROUNDING_US:
                ends.pop()
            assert not ends or end <= ends[-1] + _ROUNDING_US, span
            ends.append(end)

    def _check_flows(self) -> None:
        flows: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            if event["ph"] in "stf":
                flows[event["id"]].append(event)
                assert self._around(event, event["ts"]), f"an arrow that touches no span: {event}"
        for events in flows.values():
            assert [event["ph"] for event in events] in (["s", "f"], ["s", "t", "f"]), events
