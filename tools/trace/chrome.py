"""Writes a timeline as Chrome's trace event format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softnpu.tools.trace.collector import Recording
from softnpu.tools.trace.timeline import Timeline

Event = dict[str, Any]


def write(path: Path, timeline: Timeline, recording: Recording) -> None:
    """Write the file. Its times are microseconds since the start of the trace."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns",\n"otherData":')
        json.dump(summary(timeline, recording), file)
        file.write(',\n"traceEvents":[')
        separator = "\n"
        for event in _events(timeline, recording.start):
            file.write(separator + json.dumps(event, separators=(",", ":"), ensure_ascii=True))
            separator = ",\n"
        file.write("\n]}\n")


def summary(timeline: Timeline, recording: Recording) -> dict[str, Any]:
    """Summarise the trace; `lost` records were overwritten before they were read."""
    return {
        "clock": "CLOCK_MONOTONIC",
        "start_ns": recording.start,
        "end_ns": recording.end,
        "daemon": recording.daemon,
        "complete": recording.complete,
        "rings": len(recording.rings),
        "records": sum(len(ring.records) for ring in recording.rings),
        "lost": sum(ring.lost for ring in recording.rings),
        "invalid": sum(ring.invalid for ring in recording.rings),
        "refused": recording.refused,
        "submissions": timeline.submissions,
        "inferences": timeline.inferences,
        "counted_submissions": timeline.counted_submissions,
        "counted_inferences": timeline.counted_inferences,
        "lost_by_process": {
            f"{ring.info.role} {ring.info.pid}": ring.lost for ring in recording.rings if ring.lost
        },
    }


def _events(timeline: Timeline, zero: int) -> Iterator[Event]:
    def us(time: int) -> float:
        return (time - zero) / 1e3

    for pid, name in timeline.processes.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for place, name in timeline.threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": place.pid, "tid": place.tid, "args": {"name": name}}
    timed: list[tuple[int, int, Event]] = []  # a span precedes those nested in it
    for span in timeline.spans:
        event = {
            "ph": "X",
            "name": span.name,
            "cat": span.category,
            "pid": span.place.pid,
            "tid": span.place.tid,
            "ts": us(span.start),
            "dur": max(1, span.duration) / 1e3,
        }
        timed.append((span.start, -span.duration, event | ({"args": span.args} if span.args else {})))
    for step in timeline.steps:
        event = {
            "ph": step.phase,
            "name": "submission",
            "cat": "flow",
            "id": step.id,
            "pid": step.place.pid,
            "tid": step.place.tid,
            "ts": us(step.time),
        }
        timed.append((step.time, 1, event | ({} if step.phase == "s" else {"bp": "e"})))
    for instant in timeline.instants:
        event = {
            "ph": "i",
            "s": "p",
            "name": instant.name,
            "cat": "event",
            "pid": instant.place.pid,
            "tid": instant.place.tid,
            "ts": us(instant.time),
            "args": instant.args,
        }
        timed.append((instant.time, 1, event))
    for sample in timeline.samples:
        event = {
            "ph": "C",
            "name": sample.name,
            "pid": sample.pid,
            "tid": 0,
            "ts": us(sample.time),
            "args": {"value": sample.value},
        }
        timed.append((sample.time, 1, event))
    timed.sort(key=lambda entry: entry[:2])
    for _, _, event in timed:
        yield event
