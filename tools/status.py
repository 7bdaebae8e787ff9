"""`softnpu status`: what a running daemon does. It never starts one."""

from __future__ import annotations

import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from softnpu.tools.console import (
    JsonOption,
    format_bytes,
    format_time,
    make_table,
    out,
    print_json,
    print_line,
)
from softnpu.tools.failures import ToolError

if TYPE_CHECKING:
    from rich.table import Table

    from softnpu.driver import Driver
    from softnpu.driver.faults import InjectionState
    from softnpu.emulator.interface.messages import EngineStatus, SessionStatus, StatusAnswer

_ANSWER_S: Final = 5.0
_PROGRAM_WIDTH: Final = 40

SocketOption = Annotated[
    Path | None,
    typer.Option("--socket", help="Control socket; default: SOFTNPU_SOCKET, else this user's own."),
]
PlatformOption = Annotated[
    list[str] | None,
    typer.Option(help="Platform of a device: 3720, 4000 (default) or 5010. Repeat for more devices."),
]


class SilentDaemonError(ToolError):
    """A daemon accepts connections and does not answer: it hangs, or was stopped."""


class OtherVersionError(ToolError):
    """A daemon speaks another version of the firmware interface."""


def status(json_output: JsonOption = False, socket: SocketOption = None) -> None:
    """Show the running daemon, its devices and their counters, and who uses them."""
    with connect(socket_path(socket)) as driver:
        state = driver.status()
        injections = _injected(driver)
    if json_output:
        print_json({name: getattr(state, name) for name in state.__struct_fields__ if name != "must"})
        return
    line = (
        f"{state.server}, interface {state.interface}, daemon {state.pid} at {state.socket}, "
        f"up {format_time(state.uptime_s)}, compiler workers: {_numbers(state.compiler_pids)}"
    )
    print_line(line)
    out.print(_devices(state))
    if described := _injections(injections):
        print_line(described)
    if state.session_count:
        out.print(_sessions(state))
    else:
        out.print("no sessions")
    if len(state.users) > 1 or any(user.refusals for user in state.users):
        out.print(_users(state))


def _injected(driver: Driver) -> list[InjectionState]:
    """What was injected, as far as this user may know."""
    from softnpu.driver import ZeError, ZeResult
    from softnpu.driver.faults import status_of

    try:
        return status_of(driver)
    except ZeError as error:
        if error.result != ZeResult.ERROR_INSUFFICIENT_PERMISSIONS:
            raise
        return []


def _injections(states: list[InjectionState]) -> str:
    active = sum(state.state == "active" for state in states)
    hits = sum(state.hits for state in states)
    return f"injected faults: {active} active, {hits} hits ('softnpu inject status')" if states else ""


def socket_path(socket: Path | None) -> Path:
    """The socket that was asked for, or this user's own."""
    from softnpu.emulator.interface.endpoint import default_socket

    return default_socket() if socket is None else socket.absolute()


@contextmanager
def connect(path: Path) -> Iterator[Driver]:
    """A monitor's connection to the daemon at `path`.

    Raises `ToolError` when none runs there, `SilentDaemonError` and `OtherVersionError`.
    """
    from softnpu.driver import Driver, ZeError, ZeResult
    from softnpu.driver.errors import NoAnswerError
    from softnpu.emulator.interface import endpoint

    try:
        with Driver.open(path, autostart=False, role="monitor", answer_s=_ANSWER_S) as driver:
            yield driver
    except ZeError as error:
        info, record = error.info, endpoint.read_record(path)
        process = "" if record is None else f" (pid {record.pid})"
        if isinstance(error, NoAnswerError):
            raise SilentDaemonError(
                f"{info.object}{process}",
                found=info.found,
                expected="a daemon that answers",
                hint="let it go on (kill -CONT), or kill it with 'softnpu stop --force'",
            ) from error
        if error.result == ZeResult.ERROR_UNSUPPORTED_VERSION:
            raise OtherVersionError(
                f"daemon at {path}{process}",
                found=info.found,
                expected=info.expected,
                hint="end it with 'softnpu stop'; the next program starts one of this version",
            ) from error
        # one that is there and refuses this user has a way out of its own
        if error.result == ZeResult.ERROR_UNINITIALIZED and not isinstance(error.__cause__, OSError):
            raise ToolError(
                info.object, found=info.found, expected="a running daemon",
                hint="start one with 'softnpu daemon'",
            ) from error  # fmt: skip
        raise


def device_name(engine: EngineStatus, state: StatusAnswer) -> str:
    """`NPU`, or `NPU.1` when there are several: the name that the plugin takes."""
    return "NPU" if len(state.engines) == 1 else f"NPU.{engine.device.index}"


def _devices(state: StatusAnswer) -> Table:
    """A column for each device: there are at most 8 of them, but many things to say of each."""
    columns = [_rows_of(engine) for engine in state.engines]
    table = make_table("devices", "", right=tuple(device_name(engine, state) for engine in state.engines))
    for label in columns[0]:
        table.add_row(label, *(column[label] for column in columns))
    return table


def _rows_of(engine: EngineStatus) -> dict[str, str]:
    quiet_s = (time.monotonic_ns() - engine.heartbeat_ns) / 1e9
    return {
        "platform": engine.device.platform,
        "tiles": str(engine.device.tiles),
        "engine pid": str(engine.engine_pid or "-"),
        "state": _coloured(engine.state),
        "restarts": str(engine.restarts),
        "hangs": str(engine.hangs),
        "aborted": str(engine.aborted),
        "offences": str(engine.offences),
        "refusals": str(engine.refusals),
        "memory used": format_bytes(engine.memory_used),
        "memory in all": format_bytes(engine.device.memory_total),
        "contexts": str(engine.contexts),
        "queues": str(engine.queues),
        "graphs": str(engine.graphs),
        "loaded images": str(engine.images),
        "submissions": str(engine.submissions),
        "commands": str(engine.commands),
        "inferences": str(engine.inferences),
        "faults": str(engine.faults),
        "busy": format_time(engine.busy_ns / 1e9),
        "begun early": str(engine.overlapped),
        "tile time": format_time(engine.tile_busy_ns / 1e9),
        "staged bytes": str(engine.staged_bytes),
        "last active": f"{format_time(quiet_s)} ago" if engine.heartbeat_ns else "-",
    }


def _sessions(state: StatusAnswer) -> Table:
    title = f"sessions: {state.session_count}"
    if state.session_count > len(state.sessions):
        title += f", the first {len(state.sessions)}"
    counts = ("memory", "contexts", "allocations", "queues", "graphs")
    table = make_table(title, "session", "pid", "program", right=counts)
    for session in state.sessions:
        table.add_row(
            str(session.session),
            str(session.pid),
            _program(session),
            format_bytes(session.memory_used),
            *map(str, (session.contexts, session.allocations, session.queues, session.graphs)),
        )
    return table


def _users(state: StatusAnswer) -> Table:
    counts = ("connected", "sessions", "memory", "handles", "compiling", "refused")
    table = make_table("users", "user", right=counts)
    for user in state.users:
        table.add_row(
            _name_of(user.uid),
            str(user.connections),
            str(user.sessions),
            format_bytes(user.memory_used),
            *map(str, (user.handles, user.compiles, user.refusals)),
        )
    return table


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _program(session: SessionStatus) -> str:
    """What an interpreter runs: script, module or -c, as far as its command line can be read."""
    try:
        command = Path(f"/proc/{session.pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return session.client
    path, *words = command.split("\0")
    interpreter = path.rpartition("/")[2]
    if not session.client.startswith(("python", "-c")) or not interpreter.startswith("python"):
        return session.client
    for number, word in enumerate(words):
        if word in ("-m", "-c"):
            return f"{interpreter} {word} {words[number + 1]}"[:_PROGRAM_WIDTH].partition("\n")[0]
        if word and not word.startswith("-"):
            return word.rpartition("/")[2]
    return session.client


def _coloured(state: str) -> str:
    colour = {"ready": "green", "failed": "red"}.get(state, "yellow")
    return f"[{colour}]{state}[/]"


def _numbers(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids)) or "none"
