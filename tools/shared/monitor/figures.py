"""The figures of a daemon's reports with their names, units and meanings: commands only lay them out."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from softnpu.tools.shared.console import format_bytes, format_time


class Unit(NamedTuple):
    """How a figure is printed, and the part of its Prometheus base unit that one is."""

    text: Callable[[float], str]
    base: float = 1


COUNT: Final = Unit(str)
BYTES: Final = Unit(format_bytes)
SECONDS: Final = Unit(format_time)
NANOSECONDS: Final = Unit(lambda time: format_time(time / 1e9), 1e9)


class Figure(NamedTuple):
    """One figure: a report's field, its unit, its name in Prometheus, its meaning, and its name in `status`.

    A metric in `_total` is a counter, which only grows; any other a gauge.
    """

    field: str
    unit: Unit
    metric: str = ""
    meaning: str = ""
    label: str = ""

    def value(self, report: Any) -> float:
        """Return the number in the metric's base unit."""
        value: float = attrgetter(self.field)(report)
        return value / self.unit.base if self.unit.base != 1 else value

    def text(self, report: Any) -> str:
        """Return the number for people."""
        return self.unit.text(attrgetter(self.field)(report))


DEVICE: Final = (
    Figure("device.tiles", COUNT, "tiles", "Tiles of the device."),
    Figure("restarts", COUNT, "engine_restarts_total",
           "Engines that replaced one that had ended.", "restarts"),
    Figure("hangs", COUNT, "hangs_total",
           "Times that the engine or a command made no progress and was ended.", "hangs"),
    Figure("aborted", COUNT, "aborted_submissions_total",
           "Submissions that the device ended with DEVICE_LOST.", "aborted"),
    Figure("offences", COUNT, "offences_total", "Resets that a submission was to blame for.", "offences"),
    Figure("refusals", COUNT, "refused_requests_total",
           "Requests refused because their process had caused resets.", "refusals"),
    Figure("memory_used", BYTES, "memory_used_bytes", "Memory that sessions have allocated.", "memory used"),
    Figure("device.memory_total", BYTES, "memory_bytes", "Memory of the device.", "memory in all"),
    Figure("contexts", COUNT, "contexts", "Contexts that exist.", "contexts"),
    Figure("queues", COUNT, "command_queues", "Command queues that exist.", "queues"),
    Figure("graphs", COUNT, "graphs", "Graphs that exist.", "graphs"),
    Figure("images", COUNT, "models", "Models on the device, however many graphs use them.", "loaded images"),
    Figure("build_failures", COUNT, "failed_builds_total",
           "Compilations and imports that failed.", "failed builds"),
    Figure("submissions", COUNT, "submissions_total", "Submissions that have ended.", "submissions"),
    Figure("queued", COUNT, "queued_submissions", "Submissions that have not ended.", "waiting"),
    Figure("commands", COUNT, "commands_total", "Commands of submissions that ended well.", "commands"),
    Figure("inferences", COUNT, "inferences_total",
           "Inferences of submissions that ended well.", "inferences"),
    Figure("faults", COUNT, "faults_total", "Submissions that failed.", "faults"),
    Figure("busy_ns", NANOSECONDS, "busy_seconds_total",
           "Time in which the device executed commands.", "busy"),
    Figure("overlapped", COUNT, "overlapped_inferences_total",
           "Inferences that began before their turn, beside others.", "begun early"),
    Figure("tile_busy_ns", NANOSECONDS, "tile_busy_seconds_total",
           "Time of inferences, times the tiles of each.", "tile time"),
    Figure("staged_bytes", COUNT, "staged_bytes_total",
           "Bytes copied because a tensor could not be used in place.", "staged bytes"),
    Figure("read_bytes", COUNT, "read_bytes_total", "Bytes that commands have read."),
    Figure("written_bytes", COUNT, "written_bytes_total", "Bytes that commands have written."),
)  # fmt: skip
"""The figures of `EngineStatus`, in the order of `status`."""
FUNCTION: Final = (
    Figure("memory_used", BYTES, "function_memory_bytes", "Memory of a function."),
    Figure("busy_ns", NANOSECONDS, "function_busy_seconds_total", "Device time of a function."),
    Figure("restarts", COUNT, "function_engine_restarts_total", "Engines of a function that replaced one."),
)
"""Of a virtual function."""
SESSION: Final = (
    Figure("memory", BYTES, "session_memory_bytes", "Memory of a session."),
    Figure("busy_s", SECONDS, "session_busy_seconds_total", "Device time of a session."),
    Figure("inferences", COUNT, "session_inferences_total", "Inferences of a session."),
)
"""Of a `SessionView`."""
MODEL: Final = (
    Figure("memory", BYTES, "model_memory_bytes", "Blob and weights of a model."),
    Figure("busy_s", SECONDS, "model_busy_seconds_total", "Time of a model's inferences."),
    Figure("inferences", COUNT, "model_inferences_total", "Inferences of a model."),
)
"""Of a `ModelView`."""
