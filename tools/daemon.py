"""`softnpu daemon` and `softnpu stop`: start and stop a daemon from a shell."""

from __future__ import annotations

import grp
import os
import pwd
import select
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from softnpu.tools.shared.console import err, format_bytes, parse_size, parse_whole, print_line
from softnpu.tools.shared.daemon_connection import (
    NoDaemonError,
    OtherVersionError,
    PlatformOption,
    SilentDaemonError,
    SocketOption,
    connect,
    socket_path,
)
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.groups import INTERRUPTED
from softnpu.tools.shared.monitor.views import device_name

if TYPE_CHECKING:
    from softnpu.emulator.interface.endpoint import DaemonRecord
    from softnpu.emulator.interface.messages import Clock, EngineStatus, StatusAnswer
    from softnpu.emulator.supervisor.limits import ResourceLimits
    from softnpu.emulator.supervisor.settings import DaemonSettings

# spelt out: the help must not need the daemon's imports; a test compares it
_LIMITS: Final = (
    "session-contexts, session-allocations, session-queues, session-graphs, session-compiles, "
    "session-segments, user-connections, user-handshakes, user-sessions, user-memory, user-handles, "
    "user-queues, user-graphs, user-compiles, user-functions, job-cpu-s, user-segments"
)
# The supervisor gives each engine and worker two seconds to end before it kills them.
_END_S: Final = 15.0
_LOOK_S: Final = 0.02


def daemon(
    platform: PlatformOption = None,
    socket: SocketOption = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and log to stderr.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    memory: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", help="Memory of each device, like 4GiB.")
    ] = None,
    session_memory: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", help="What one session may allocate.")
    ] = None,
    tdr_ms: Annotated[
        int | None, typer.Option(help="Abort a submission that waits this long without progress [2000].")
    ] = None,
    spin_us: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            metavar="INTEGER",
            envvar="SOFTNPU_SPIN_US",
            help="Longest busy wait of an engine [50].",
        ),
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(
            metavar="CLOCK",
            envvar="SOFTNPU_CLOCK",
            help="Whose times it shows: host, device (modelled) or paced, which also takes them [host].",
        ),
    ] = None,
    pace: Annotated[
        bool, typer.Option("--pace", help="As --clock paced: inferences take as long as on silicon.")
    ] = False,
    inference_us: Annotated[
        int | None,
        typer.Option(
            envvar="SOFTNPU_INFERENCE_US",
            help="Modelled time of every inference, instead of what softnpu predict says.",
        ),
    ] = None,
    idle_timeout: Annotated[
        float, typer.Option(help="End after this many seconds without a client; 0: stay.")
    ] = 0.0,
    command_limit: Annotated[
        float | None, typer.Option(help="Abort a command that computes for so many seconds [600]; 0: never.")
    ] = None,
    max_clients: Annotated[int | None, typer.Option(help="Connections of all users together [4096].")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help=f"What a session or a user may hold: {_LIMITS}. Repeat."),
    ] = None,
    allow_user: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|UID", help="Let this user in, beside the owner and root. Repeat."),
    ] = None,
    allow_group: Annotated[
        list[str] | None, typer.Option(metavar="NAME|GID", help="Let the members of this group in. Repeat.")
    ] = None,
    inject: Annotated[
        str | None,
        typer.Option(metavar="FAULTS", help="Provoke faults, like 'hang:after=3, slow=20ms:count=*'."),
    ] = None,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Try out every model that is loaded; for tests.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse the models that silicon is known to refuse.")
    ] = False,
    kernels: Annotated[
        str, typer.Option(metavar="all|signed|none", help="Which own kernels run; signed: see kernel trust.")
    ] = "all",
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="DIR",
            help="Check all programs, see 'softnpu check --notes': their notes go into this empty folder.",
            file_okay=False,
        ),
    ] = None,
    leased_only: Annotated[
        bool, typer.Option("--leased-only", help="Programs see the devices of their lease, or none.")
    ] = False,
    isolate: Annotated[
        str, typer.Option(metavar="user|session", help="Who has an engine alone: each user, or each session.")
    ] = "user",
    sysfs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep files there as the kernel has them of an NPU, for monitors."),
    ] = None,
    failpoints: Annotated[
        str | None, typer.Option(metavar="RULES", help="For tests: make the daemon fail at named points.")
    ] = None,
) -> None:
    """Start a daemon with emulated NPUs, in the background unless --foreground is given."""
    import msgspec

    from softnpu.emulator.daemon import start_background
    from softnpu.emulator.interface import environment
    from softnpu.emulator.platforms import DEFAULT_PLATFORM
    from softnpu.emulator.supervisor.settings import DaemonSettings, isolation

    path = socket_path(socket)
    if check is not None:
        from softnpu.tools.check.checked_daemon import new_folder

        os.environ[environment.ENV_CHECK] = str(new_folder(check))
    chosen = {
        "devices": tuple(platform) if platform else environment.devices(DEFAULT_PLATFORM),
        "memory": memory,
        "session_memory": session_memory,
        "tdr_ms": tdr_ms,
        "spin_us": spin_us,
        "clock": _clock(clock, pace),
        "inference_us": inference_us,
        "command_limit_s": command_limit,
        "max_clients": max_clients,
        "limits": _limits(limit or []),
        "allow_users": _numbers_of(allow_user or [], "--allow-user", "user", _uid),
        "allow_groups": _numbers_of(allow_group or [], "--allow-group", "group", _gid),
        "sysfs": None if sysfs is None else str(sysfs.absolute()),
        "failpoints": failpoints,
        "inject": inject,
    }
    settings = msgspec.structs.replace(
        DaemonSettings(
            socket=str(path),
            log_level=log_level,
            idle_timeout_s=idle_timeout,
            self_check=self_check,
            strict=strict,
            kernels=kernels,
            leased_only=leased_only,
            isolate=isolation(isolate),
        ),
        **{name: value for name, value in chosen.items() if value is not None},
    )
    if foreground:
        _serve(settings)
        return
    start_background(settings)
    with connect(path) as driver:
        status = driver.status()
    _announce(status)
    _check_engines(status, path)
    if settings.is_strict:
        print_line("  strict: models that silicon is known to refuse are refused")
    if check is not None:
        print_line(f"  check: 'softnpu check --notes {check}' says what its programs do wrong")


def stop(
    socket: SocketOption = None,
    force: Annotated[bool, typer.Option("--force", help="Kill a daemon that does not answer.")] = False,
) -> None:
    """Ask the daemon to end, and wait until it has. Succeeds if none runs, and says so."""
    from softnpu.emulator.interface import endpoint

    path = socket_path(socket)
    record = endpoint.read_record(path)  # it removes its record when it ends
    how = "stopped"
    try:
        ending = _ask(path)
    except NoDaemonError as error:
        print_line(f"no daemon to stop: {error.object}: {error.found}")
        return
    except OtherVersionError as error:
        ending = _send_signal(signal.SIGTERM, path, record, error.found)
    except SilentDaemonError:
        if not force:
            raise
        ending, how = _send_signal(signal.SIGKILL, path, record, "it does not answer"), "killed"
    _await_end(ending)
    if how == "killed":
        _remove_leftovers(path)
    print_line(f"daemon {ending.pid} at {path} {how}")


# ------------------------------------------------------------ starting


def _clock(text: str | None, pace: bool) -> Clock | None:
    """Return the clock of these options; reject one that contradicts --pace."""
    from softnpu.emulator.interface.messages import Clock

    known = [each.value for each in Clock]
    if text is not None and text not in known:
        raise UsageError("--clock", found=text, expected=", ".join(known))
    if pace and text not in {None, Clock.PACED.value}:
        raise UsageError("--pace", found=f"--clock {text} beside it", expected="one of them")
    if pace:
        return Clock.PACED
    return None if text is None else Clock(text)


def _limits(entries: list[str]) -> ResourceLimits:
    """Parse `NAME=VALUE` entries as limits; raise `UsageError` for any other."""
    import msgspec

    from softnpu.emulator.supervisor.limits import ResourceLimits, option_name

    fields = {option_name(field): field for field in ResourceLimits.__struct_fields__}
    chosen = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        if name not in fields:
            raise UsageError(
                f"--limit {entry}", found=f"no limit {name!r}", expected="one of " + ", ".join(fields)
            )
        try:
            chosen[fields[name]] = parse_size(value) if name.endswith("memory") else int(value)
        except (ValueError, typer.BadParameter):
            raise UsageError(f"--limit {entry}", found=f"the value {value!r}", expected="a number") from None
    return msgspec.structs.replace(ResourceLimits(), **chosen)


def _numbers_of(names: list[str], option: str, kind: str, find: Callable[[str], int]) -> tuple[int, ...]:
    """Return the ids of users or groups given by name or number."""
    try:
        return tuple(int(name) if name.isascii() and name.isdigit() else find(name) for name in names)
    except KeyError as error:
        raise UsageError(
            option, found=str(error.args[0]), expected=f"the name or number of a {kind}"
        ) from error


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def _gid(name: str) -> int:
    return grp.getgrnam(name).gr_gid


def _serve(settings: DaemonSettings) -> None:
    from softnpu.emulator.daemon import ReadyPipe, configure_logging, serve

    settings.check()
    configure_logging(settings.log_level)
    read_end, write_end = os.pipe()
    threading.Thread(target=_print_ready, args=(read_end, settings.socket), daemon=True).start()
    if serve(settings, ReadyPipe(write_end)) == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)


def _print_ready(fd: int, socket: str) -> None:
    with os.fdopen(fd, "rb") as reader:
        if reader.readline():
            err.print(f"softnpu: ready at {socket}, pid {os.getpid()}", markup=False, highlight=False)


def _announce(status: StatusAnswer) -> None:
    print_line(f"daemon {status.pid} serves {status.socket}")
    for engine in status.engines:
        print_line(f"  {_device_line(engine, status)}")


def _check_engines(status: StatusAnswer, path: Path) -> None:
    """Reject a daemon with failed devices; end it if it has no others."""
    from softnpu.emulator.interface import endpoint

    failed = [device_name(engine, status) for engine in status.engines if engine.state == "failed"]
    if not failed:
        return
    end = "it serves the other devices"
    if len(failed) == len(status.engines):
        _await_end(_ask(path))
        end = "it was ended"
    raise ToolError(
        f"daemon {status.pid}, {', '.join(failed)}",
        found=f"the engine ends before it is ready; {end}",
        expected="an engine that starts",
        hint=f"read {endpoint.log_path(path)}",
    )


def _device_line(engine: EngineStatus, status: StatusAnswer) -> str:
    from softnpu.emulator.platforms import title

    info = engine.device
    shown = f"engine {engine.engine_pid} {engine.state}"
    if engine.state == "ready" and not engine.engine_pid:
        shown = "an engine for each session"
    return (
        f"{device_name(engine, status)}: platform {title(info.platform)}, {info.tiles} tiles, "
        f"{format_bytes(info.memory_total)}, {shown}"
    )


# ------------------------------------------------------------ stopping


class EndingProcess(NamedTuple):
    """A process asked to end. `pidfd` is -1 if it ended before we could watch it.

    `lock`: the lock file of a process in another container, whose pid is meaningless here.
    """

    pid: int
    pidfd: int
    lock: Path | None = None


def _ask(path: Path) -> EndingProcess:
    """Ask the daemon to end."""
    from softnpu.emulator.interface import endpoint

    with connect(path) as driver:
        pid = driver.daemon_pid
        if _pid_seen_here(path) == pid:
            ending = EndingProcess(pid, _open_pidfd(pid))
        else:
            ending = EndingProcess(pid, -1, endpoint.lock_path(path))
        driver.stop_daemon()
        return ending


def _pid_seen_here(path: Path) -> int:
    """Return the pid of a socket's server, in our namespace; 0 for a process of an invisible container."""
    from softnpu.emulator.common import linux
    from softnpu.emulator.interface import endpoint

    with endpoint.new_socket() as probe, endpoint.socket_address(path) as address:
        probe.connect(address)
        return linux.peer_of(probe).pid


def _send_signal(number: int, path: Path, record: DaemonRecord | None, found: str) -> EndingProcess:
    """Signal the process of the lock record, once it is proven to be that daemon."""
    from softnpu.emulator.common.process_identity import ProcessIdentity

    # the pidfd first, then the proof: the pid cannot be reused in between
    pidfd = -1 if record is None else _open_pidfd(record.pid)
    proven = (
        record is not None and ProcessIdentity(record.pid, record.start_time, record.boot_id).is_running()
    )
    if record is None or pidfd < 0 or not proven:
        if pidfd >= 0:
            os.close(pidfd)
        raise ToolError(
            f"daemon at {path}",
            found=f"{found}, and its lock file names no living process",
            expected="the lock file of a running daemon",
            hint=f"find out who serves the socket with 'fuser {path}'",
        )
    signal.pidfd_send_signal(pidfd, number)
    return EndingProcess(record.pid, pidfd)


def _open_pidfd(pid: int) -> int:
    """Return a new descriptor of a process; -1 if there is none with this pid."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _await_end(ending: EndingProcess) -> None:
    """Wait for the end of a process asked to end; raise `ToolError` if it still runs after 15 s."""
    if ending.lock is not None:
        ended = _await_removal(ending.lock)
    elif ending.pidfd < 0:
        ended = True
    else:
        poller = select.poll()
        poller.register(ending.pidfd, select.POLLIN)
        ended = bool(poller.poll(_END_S * 1000))
        os.close(ending.pidfd)
    if not ended:
        raise ToolError(
            f"daemon {ending.pid}",
            found=f"still runs after {_END_S:g} s",
            expected="its end",
            hint="read its log",
        )


def _await_removal(file: Path) -> bool:
    """Return whether a file is removed within 15 s."""
    end = time.monotonic() + _END_S
    while file.exists():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_S)
    return True


def _remove_leftovers(path: Path) -> None:
    """Remove a killed daemon's files, unless a new one has already started."""
    from softnpu.emulator.interface.result import Refused
    from softnpu.emulator.socket_files import DaemonLock

    try:
        lock = DaemonLock(path)
    except Refused:
        return
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        return
    finally:
        lock.release()
