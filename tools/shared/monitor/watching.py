"""Polling a daemon without a screen: tables, JSON lines, CSV as of intel-npu-smi."""

from __future__ import annotations

import csv
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from softnpu.tools.shared.console import err, format_bytes, json_text, make_table, out, print_line
from softnpu.tools.shared.failures import describe
from softnpu.tools.shared.monitor.document import document
from softnpu.tools.shared.monitor.programs import Programs
from softnpu.tools.shared.monitor.sample import Monitor, Sample
from softnpu.tools.shared.monitor.tables import print_work
from softnpu.tools.shared.monitor.views import View

_FIRST_S: Final = 0.2
_MIB: Final = 1 << 20
# intel/linux-npu-driver, tools/intel-npu-smi/src/csv_logger.cpp
_COLUMNS: Final = (
    "timestamp",
    "power",
    "frequency",
    "bandwidth",
    "tile_config",
    "temperature",
    "utilization",
    "memory_usage",
)


class Form(Protocol):
    """The output form of a sample. `first_s`: time to the second one, so that the first rates come soon."""

    first_s: float

    def show(self, view: View) -> None:
        """Print one look."""
        ...


class TableForm:
    """Tables, which replace the previous ones on a terminal."""

    first_s = _FIRST_S

    def show(self, view: View) -> None:
        """Print devices, sessions, models and compilations."""
        if out.is_terminal:
            out.clear()
        state = view.sample.status
        print_line(f"{datetime.now():%H:%M:%S}  daemon {state.pid}, the last {view.interval_s:.1f} s")
        right = ("busy", "tiles", "memory", "queued", "inf/s", "restarts")
        table = make_table("devices", "", "platform", "state", right=right)
        for device in view.devices:
            table.add_row(
                device.name,
                device.platform,
                device.state,
                f"{device.utilisation:.1%}",
                f"{device.tiles_used:.1f}/{device.tiles}",
                format_bytes(device.memory_used),
                str(device.queued),
                f"{device.inferences_s:.1f}",
                str(device.restarts),
            )
        out.print(table)
        print_work(view)


class JsonForm:
    """One document per line for each look."""

    first_s = _FIRST_S

    def show(self, view: View) -> None:
        """Print the document of `softnpu status --json`, with the time of the look."""
        print(json_text({"time": time.time()} | document(view)), flush=True)


class CsvForm:
    """The columns of intel-npu-smi, a line for each device; if there are several, its name in a last column.

    Frequency in Hz, bandwidth in MiB/s, memory in MiB. Power and temperature stay empty: there are none.
    """

    first_s = _FIRST_S

    def __init__(self) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._begun = False

    def show(self, view: View) -> None:
        """Print a line for each device, after the column names."""
        several = len(view.devices) > 1
        if not self._begun:
            self._writer.writerow((*_COLUMNS, "device") if several else _COLUMNS)
            self._begun = True
        stamp = f"{datetime.now():%H:%M:%S.%f}"[:-3]
        for device in view.devices:
            busy = device.utilisation > 0
            row = (
                stamp,
                "",
                device.clock_mhz * 1_000_000 if busy else 0,
                f"{device.traffic_s / _MIB:.3f}",
                device.tiles if busy else 0,
                "",
                round(100 * device.utilisation),
                f"{device.memory_used / _MIB:.2f}",
            )
            self._writer.writerow((*row, device.name) if several else row)
        sys.stdout.flush()


def watch(path: Path, seconds: float, count: int | None, form: Form) -> None:
    """Show a sample at this interval, forever if `count` is None.

    A daemon must run at the start. Its end is reported on stderr, and the next one is shown.
    """
    monitor, programs = Monitor(path), Programs()
    before: Sample | None = None
    shown, problem, due = 0, "", time.monotonic()
    try:
        while count is None or shown < count:
            sample = monitor.poll()
            if isinstance(sample, Exception):
                if before is None:
                    raise sample
                if describe(sample) != problem:
                    problem = describe(sample)
                    print_line(problem, console=err)
                due = time.monotonic() + seconds
            else:
                if before is not None and before.status.pid == sample.status.pid:
                    form.show(View.of(sample, before, programs))
                    shown += 1
                    due = max(due + seconds, sample.at)
                else:
                    due = sample.at + min(seconds, form.first_s)
                before, problem = sample, ""
            if count is None or shown < count:
                time.sleep(max(0.0, due - time.monotonic()))
    finally:
        monitor.close()
