"""Runs a program, and writes a trace of all processes meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from softnpu.emulator.interface.environment import TRACE_VARIABLE
from softnpu.emulator.interface.trace import DEFAULT_RECORDS
from softnpu.tools.shared import failures
from softnpu.tools.shared.console import err, format_bytes, format_count, print_json, print_line
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.program import watch

if TYPE_CHECKING:
    from softnpu.tools.trace.collector import Recording

_FILE: Final = Path("intel-npu-umd.perfetto-trace")
_SYSTEM: Final = "system"


def wanted_file(environment: Mapping[str, str]) -> Path | None:
    """Return the file requested by `ZE_INTEL_NPU_LOGPERFETTO`; None for 0, and for Perfetto's own daemon."""
    value = environment.get(TRACE_VARIABLE, "")
    return None if not value or value[0] == "0" or value == _SYSTEM else _FILE


def record(
    command: list[str],
    environment: Mapping[str, str],
    path: Path,
    output: Path,
    layers: bool = False,
    records: int = DEFAULT_RECORDS,
    as_json: bool = False,
) -> int:
    """Run a program that uses the daemon at `path`, write its trace, and return its exit code."""
    from softnpu.driver import Driver
    from softnpu.tools.trace.collector import POLL_S, collecting

    check_output(output)
    code: int | None = None
    try:
        with (
            Driver.open(path, autostart=False, role="monitor") as driver,
            collecting(driver, layers, records) as trace,
        ):
            code = watch(command, environment, trace.poll, POLL_S)
            write(output, trace.finish(), as_json)
    except failures.expected() as error:
        if code is None:
            raise
        failures.print_error(error)  # the program's effects stand: only the trace is missing
    return code


def check_output(output: Path) -> None:
    """Reject an unwritable file before anything runs."""
    if not output.parent.is_dir():
        raise ToolError(
            f"file {output}", found=f"no folder {output.parent}", expected="a file in a folder that exists"
        )
    is_new = not output.exists()
    if is_new or output.is_file():  # opening a pipe would wait for its reader
        with output.open("ab"):
            pass
    if is_new:
        output.unlink()


def write(output: Path, recording: Recording, as_json: bool = False) -> None:
    """Write the file, and summarise it: on stderr, or as a document on stdout."""
    from softnpu.tools.trace import chrome
    from softnpu.tools.trace.timeline import timeline_of

    timeline = timeline_of(recording)
    try:
        chrome.write(output, timeline, recording)
    except OSError as error:  # on a full disk it names no file
        raise OSError(error.errno, error.strerror, str(output)) from error
    summary, size = chrome.summary(timeline, recording), output.stat().st_size
    if as_json:
        processes = len(timeline.processes)
        print_json({"file": str(output), "size": size, "processes": processes, **summary})
        return
    line = (
        f"{output}: {format_bytes(size)}, {format_count(summary['records'], 'record')} of "
        f"{len(timeline.processes)} processes, "
        f"{format_count(timeline.submissions, 'submission')}, "
        f"{format_count(timeline.inferences, 'inference')}"
    )
    print_line(line, console=err)
    if summary["lost"] or summary["refused"]:
        lost = (
            f"lost: {format_count(summary['lost'], 'record')}, {format_count(summary['refused'], 'session')}"
        )
        if summary["lost"]:
            lost += "; larger rings (--records) keep more of a burst"
        print_line(lost, console=err)
    if not recording.complete:
        print_line("it ends early: the daemon has ended, or nothing was read for 10 s", console=err)
