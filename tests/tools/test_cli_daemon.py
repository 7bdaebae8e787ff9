"""`softnpu daemon`, `status`, `stop`: one daemon per socket, shown and stopped cleanly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from softnpu.emulator.common import process_identity
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.endpoint import DaemonRecord
from softnpu.emulator.interface.version import INTERFACE_MINOR
from softnpu.emulator.log_file import MAX_BYTES
from softnpu.tools import cli, doctor
from softnpu.tools.shared.scratch import in_use
from tests.conftest import StartDaemon, StartPython
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.waiting import DEADLINE_S, wait_gone, wait_until


@pytest.fixture
def socket(private_dir: Path) -> Iterator[Path]:
    """The socket of this test; a daemon that a command started there is stopped at the end."""
    path = private_dir / "npu.sock"
    yield path
    record = endpoint.read_record(path)
    if record is not None:
        os.kill(record.pid, signal.SIGTERM)
        wait_gone(record.pid)


# ------------------------------------------------------------ daemon


def test_a_background_daemon_names_itself_and_its_log_can_be_read_and_cleaned(
    private_dir: Path,
) -> None:
    other = private_dir / "other.sock"
    options = ("--platform", "3720", "--platform", "panther-lake", "--memory", "1GiB")
    words = softnpu("daemon", *options, "--socket", other, "--idle-timeout", "30").words
    record = endpoint.read_record(other)
    assert record is not None
    try:
        lines = words.splitlines()
        assert lines[0] == f"daemon {record.pid} serves {other}"
        assert lines[1].startswith("  NPU.0: platform 3720 (Meteor Lake), 2 tiles, 1.0 GiB, engine ")
        assert lines[2].startswith("  NPU.1: platform 5010 (Panther Lake), 3 tiles, 1.0 GiB, engine ")
        assert all(line.endswith(" ready") for line in lines[1:])
        first, *rest = softnpu("logs", "--socket", other).words.splitlines()
        assert "serving" in first
        assert softnpu("logs", "-n", "1", "--socket", other).words == f"{rest[-1]}\n"
        # what is in use stays
        assert softnpu("clean", "--socket", other, TMPDIR=str(private_dir)).words == "0 B freed\n"
    finally:
        assert "stopped" in softnpu("stop", "--socket", other).words
    assert not other.exists()
    log = endpoint.log_path(other)
    assert f"would remove {log}" in softnpu("clean", "--dry-run", TMPDIR=str(private_dir)).words
    assert log.exists()
    assert f"removed {log}" in softnpu("clean", TMPDIR=str(private_dir)).words
    assert not log.exists()
    assert "no such file" in softnpu("logs").complaint


def test_clean_keeps_files_that_only_look_like_a_daemons(private_dir: Path) -> None:
    notes, socket = private_dir / "notes.txt", private_dir / "a.sock"
    files = [notes, socket, *(Path(f"{socket}{end}") for end in (".log", ".log.1", ".lock"))]
    for file in files:
        file.write_text("my thesis\n")
    for arguments, place in ((("--socket", notes), ""), ((), str(socket))):
        told = softnpu("clean", *arguments, TMPDIR=str(private_dir), SOFTNPU_SOCKET=place or str(socket))
        assert told.words == "0 B freed\n"
    assert all(file.read_text() == "my thesis\n" for file in files)


def test_clean_removes_leftovers_of_a_killed_daemon(start_daemon: StartDaemon, private_dir: Path) -> None:
    daemon = start_daemon()
    daemon.kill()
    told = softnpu("clean", "--dry-run", TMPDIR=str(private_dir)).words
    left = [daemon.socket, endpoint.lock_path(daemon.socket)]
    assert all(f"would remove {path}, " in told for path in left), told
    told = softnpu("clean", TMPDIR=str(private_dir)).words
    assert all(f"removed {path}, " in told for path in left), told
    assert not any(path.exists() for path in left)
    endpoint.log_path(daemon.socket).touch()  # read by the fixture


def test_clean_keeps_the_folder_of_a_running_command_of_any_age(private_dir: Path) -> None:
    folder = private_dir / "softnpu-stress-1"
    folder.mkdir()
    with in_use(folder):
        os.utime(folder, (0, 0))
        softnpu("clean", TMPDIR=str(private_dir))
        assert folder.exists()
    os.utime(folder, (0, 0))
    softnpu("clean", TMPDIR=str(private_dir))
    assert not folder.exists()


def test_clean_removes_leftovers_of_killed_commands_and_nothing_in_use(private_dir: Path) -> None:
    names = ("private-old", "private-new", "stress-reports")
    folders = {name: private_dir / f"softnpu-{name}" for name in names}
    for name, folder in folders.items():
        (folder / "reports").mkdir(parents=True) if name == "stress-reports" else folder.mkdir()
        (folder / "npu.sock.log").touch()
        if name != "private-new":
            os.utime(folder, (0, 0))
    softnpu("clean", TMPDIR=str(private_dir))
    assert [name for name, folder in folders.items() if folder.exists()] == ["private-new", "stress-reports"]
    variables = {"ZE_INTEL_NPU_CACHE_DIR": "", "SOFTNPU_MODELS_DIR": str(private_dir / "models")}
    extensions = private_dir / "extensions"
    variables["SOFTNPU_EXTENSION_DIR"] = str(extensions)
    for name in (".build-new", ".build-old"):
        (extensions / name).mkdir(parents=True)
    os.utime(extensions / ".build-old", (0, 0))
    (extensions / "libsoftnpu_rounding-1.so").touch()
    variables["XDG_CACHE_HOME"] = str(private_dir / "cache")
    compiled = private_dir / "cache" / "softnpu" / "farm"
    compiled.mkdir(parents=True)
    for name in ("model.blob", ".new.part", "of-others"):
        (compiled / name).touch()
    softnpu("clean", "--all", TMPDIR=str(private_dir), **variables)
    assert sorted(path.name for path in compiled.iterdir()) == [".new.part", "of-others"]
    assert [name for name, folder in folders.items() if folder.exists()] == ["private-new"]
    assert [path.name for path in extensions.iterdir()] == [".build-new"]


def test_a_daemon_rotates_a_long_log(socket: Path) -> None:
    log = endpoint.log_path(socket)
    log.write_bytes(b"old\n" * (MAX_BYTES // 4))
    log.chmod(0o600)
    softnpu("daemon", "--idle-timeout", "30")
    softnpu("stop")
    assert endpoint.older_log_path(socket).stat().st_size >= MAX_BYTES
    assert log.stat().st_size < 4096
    lines = softnpu("logs", "-n", "1000").words.splitlines()
    assert lines[0] == "old"
    assert "serving" in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--platform", "1234"), "device platform: '1234'; expected 3720 or 4000 or 5010"),
        (("--platform", "lunar-lak"), "Did you mean lunar-lake?"),
        (("--platform", "6010"), "'6010', whose tiles, clock and timer no public source has"),
        (
            ("--platform", "5020", "--clock", "device"),
            "device for platform 5020 (Wildcat Lake); expected host",
        ),
        (("--log-level", "loud"), "setting --log-level: 'loud'"),
        (("--tdr-ms", "0"), "setting --tdr-ms: 0; expected 1 or more"),
        (("--spin-us", "-1"), "setting --spin-us: -1"),
        (("--platform", "4000") * 9, "setting --platform: 9 devices; expected 1 to 8"),
    ],
)
def test_a_setting_that_cannot_work_is_named(arguments: tuple[str, ...], said: str) -> None:
    assert said in softnpu("daemon", *arguments).misuse


def test_a_daemon_in_the_foreground_reports_when_it_is_ready_and_ends_on_ctrl_c(socket: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "softnpu.tools.cli", "daemon", "--foreground", "--log-level", "error"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"softnpu: ready at {socket}, pid {process.pid}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGINT
    assert not socket.exists()


@pytest.mark.parametrize("mode", [(), ("--foreground", "--log-level", "debug")])
def test_ctrl_c_while_a_daemon_starts_ends_it_silently(socket: Path, mode: tuple[str, ...]) -> None:
    # its engine blocks during its start until released
    slow = ("--failpoints", "engine.handshake=stop")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "softnpu.tools.cli", "daemon", *mode, *slow],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        wait_until(lambda: endpoint.read_record(socket) is not None, what="a daemon that starts")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said
    assert not socket.exists()


def test_a_daemon_whose_engine_does_not_start_is_ended_and_reported(socket: Path) -> None:
    complaint = softnpu("daemon", "--failpoints", "engine.handshake=error:*").complaint
    assert re.fullmatch(
        rf"daemon \d+, NPU: the engine ends before it is ready; it was ended; expected an engine that starts."
        rf" Read {re.escape(str(socket))}\.log\n?",
        complaint,
    )
    assert endpoint.read_record(socket) is None


def test_a_daemon_that_cannot_write_its_files_gives_the_reason(socket: Path) -> None:
    for command in ("softnpu.tools.cli daemon --socket", "softnpu.emulator.autostart"):
        line = ["prlimit", "--fsize=10", sys.executable, "-P", "-m", *command.split(), str(socket)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, command
        said = done.stdout + done.stderr
        assert "File too large; expected room and permission for its files" in said, command


# ------------------------------------------------------------ status


def test_status_without_a_daemon_says_so_and_starts_none(socket: Path) -> None:
    assert softnpu("status", SOFTNPU_AUTOSTART="1").complaint == (
        f"daemon at {socket}: no socket there; expected a running daemon. Start one with 'softnpu daemon'"
    )
    assert not socket.exists()


def test_status_hides_figures_that_are_zero_everywhere_unless_asked(daemon: Daemon) -> None:
    def labels(*arguments: str) -> list[str]:
        return [line.strip()[:12].strip() for line in softnpu("status", *arguments).words.splitlines()]

    restarts, hangs = "restarts", "hangs"
    assert {"platform", "memory in al", "state"} <= set(labels())
    assert not {restarts, hangs} & set(labels())
    assert {restarts, hangs, "platform"} <= set(labels("--all"))
    os.kill(daemon.engine().engine_pid, signal.SIGKILL)
    wait_until(lambda: daemon.engine().restarts == 1, what="another engine")
    assert restarts in labels()
    assert hangs not in labels()


def test_a_user_who_may_not_connect_is_told_what_to_do(cli_daemon: Daemon) -> None:
    # another user, who may read what this one may, but is not root
    command = ["unshare", "-U", "--map-user=12345", sys.executable, "-P", "-m", "softnpu.tools.cli"]
    log = endpoint.log_path(cli_daemon.socket)
    log.write_bytes(b"")
    for path in (cli_daemon.socket, log):
        path.chmod(0)
    try:
        done, logs = (
            subprocess.run([*command, name], capture_output=True, text=True, timeout=60, check=False)
            for name in ("status", "logs")
        )
    finally:
        for path in (cli_daemon.socket, log):
            path.chmod(0o600)
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces: {done.stderr}")
    assert [done.returncode, logs.returncode] == [1, 1]
    assert "no permission; expected the log of a daemon of this user. Ask the owner" in logs.stderr
    assert "Permission denied; expected the socket of a softnpu daemon. Ask its owner" in done.stderr
    assert "--allow-user 12345, or choose its place with SOFTNPU_SOCKET" in done.stderr


def test_status_shows_the_daemon_its_devices_and_who_uses_them(
    start_daemon: StartDaemon, start_python: StartPython
) -> None:
    daemon = start_daemon(devices=("4000", "3720"))
    client = start_python(
        """
        driver = Driver.open(given["socket"])
        context = driver.devices[1].create_context()
        memory = context.alloc_host(5 << 20)
        say("here")
        hear()
        """,
        socket=str(daemon.socket),
    )
    client.hear()
    words = softnpu("status").words
    client.tell()
    rows = {line.split("  ")[1]: line.split() for line in words.splitlines() if line.startswith("  ")}
    assert f"daemon {daemon.pid} at {daemon.socket}" in words
    assert rows["platform"][-6:] == ["4000", "(Lunar", "Lake)", "3720", "(Meteor", "Lake)"]
    assert rows["state"][-2:] == ["ready", "ready"]
    assert rows["memory used"][-4:] == ["0", "B", "5.0", "MiB"]
    assert rows["contexts"][-2:] == ["0", "1"]
    assert f" {client.pid} " in words
    assert re.search(rf" {client.pid} +python\S* -c ", words), "the program, not the interpreter alone"
    client.finish()


def test_status_as_json_has_every_field_of_the_interface(daemon: Daemon) -> None:
    state = json.loads(softnpu("status", "--json").words)
    expected = daemon.status()
    assert state["pid"] == daemon.pid
    assert state["engines"][0]["engine_pid"] == expected.engines[0].engine_pid
    assert state["engines"][0]["device"]["uuid"] == expected.engines[0].device.uuid.hex()
    assert set(state["engines"][0]) == set(expected.engines[0].__struct_fields__)
    assert set(state) >= set(expected.__struct_fields__) - {"must"}


# ------------------------------------------------------------ stop


def test_stop_returns_when_the_daemon_has_ended(daemon: Daemon) -> None:
    assert softnpu("stop").words == f"daemon {daemon.pid} at {daemon.socket} stopped\n"
    assert daemon.process.wait(0) == 0
    assert not daemon.socket.exists()


def test_stop_without_a_daemon_says_so_and_succeeds(socket: Path) -> None:
    told = f"no daemon to stop: daemon at {socket}: no socket there\n"
    assert softnpu("stop", SOFTNPU_AUTOSTART="1").words == told
    assert softnpu("stop", "--force").words == told
    assert not socket.exists()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in this process, with a patience of one second and doctor checking the daemon."""
    monkeypatch.setattr("softnpu.tools.shared.daemon_connection._ANSWER_S", 1.0)
    monkeypatch.setattr(doctor, "_CHECKS", (doctor._daemon,))
    return lambda *arguments: CliRunner().invoke(cli.app, arguments)


def test_a_suspended_daemon_is_reported_with_its_pid_and_killed_only_by_force(
    daemon: Daemon, impatient: Callable[..., Result]
) -> None:
    engine = daemon.engine().engine_pid
    daemon.process.send_signal(signal.SIGSTOP)
    for command in ("status", "stop", "doctor"):
        done = impatient(command)
        assert done.exit_code == 1
        words = done.output if command == "doctor" else done.stderr
        assert f"daemon at {daemon.socket} (pid {daemon.pid}): no answer within 1 s" in words
        assert "softnpu stop --force" in words
    daemon.process.send_signal(signal.SIGCONT)
    assert daemon.status().pid == daemon.pid

    daemon.process.send_signal(signal.SIGSTOP)
    assert impatient("stop", "--force").stdout == f"daemon {daemon.pid} at {daemon.socket} killed\n"
    assert daemon.process.wait(DEADLINE_S) == -signal.SIGKILL
    wait_gone(engine)
    assert not daemon.socket.exists()
    assert not endpoint.lock_path(daemon.socket).exists()


def test_a_daemon_of_another_version_is_reported_with_its_pid_and_stopped(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, impatient: Callable[..., Result]
) -> None:
    monkeypatch.setattr("softnpu.driver.driver.INTERFACE_MAJOR", 99)
    for command in ("status", "doctor"):
        done = impatient(command)
        assert done.exit_code == 1
        words = done.output if command == "doctor" else done.stderr
        assert f"daemon at {daemon.socket} (pid {daemon.pid})" in words
        assert f"99.{INTERFACE_MINOR}" in words
        assert "end it with 'softnpu stop'" in words.replace("End", "end")
    assert impatient("stop").stdout == f"daemon {daemon.pid} at {daemon.socket} stopped\n"
    assert daemon.process.wait(DEADLINE_S) == 0
    assert not daemon.socket.exists()


def test_a_daemon_in_another_container_is_stopped_despite_its_foreign_pid(
    private_dir: Path,
) -> None:
    path = private_dir / "npu.sock"
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [
        sys.executable,
        "-P",
        "-m",
        "softnpu.tools.cli",
        "daemon",
        "--foreground",
        "--socket",
        str(path),
    ]
    with subprocess.Popen([*container, *command], stderr=subprocess.PIPE, text=True) as daemon:
        said = daemon.stderr
        assert said is not None
        wait_until(lambda: "ready at" in said.readline())
        assert softnpu("stop", "--socket", str(path)).words == f"daemon 1 at {path} stopped\n"
        assert not endpoint.lock_path(path).exists()
        daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 0


@pytest.mark.parametrize("field", ["start_time", "boot_id"])
def test_force_kills_only_a_process_proven_to_be_the_daemon(
    daemon: Daemon, start_python: StartPython, field: str, impatient: Callable[..., Result]
) -> None:
    stranger = start_python("say('here')\nhear()")
    stranger.hear()
    honest = DaemonRecord(
        pid=stranger.pid,
        start_time=process_identity.start_time(stranger.pid),
        boot_id=process_identity.boot_id(),
        status="",
    )
    wrong = {"start_time": honest.start_time + 1, "boot_id": "another boot"}[field]
    lock = endpoint.lock_path(daemon.socket)
    before = lock.read_bytes()
    lock.write_bytes(msgspec.json.encode(msgspec.structs.replace(honest, **{field: wrong})))
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        assert "names no living process" in impatient("stop", "--force").stderr
    finally:
        lock.write_bytes(before)
        daemon.process.send_signal(signal.SIGCONT)
    stranger.tell()
    stranger.finish()
