"""`softnpu run` and `softnpu env`: the program's environment, its exit, and its daemon."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softnpu.driver.native_library import NativeLibrary
from softnpu.emulator.daemon import saved_environment
from softnpu.tools.shared import private_daemon
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.waiting import wait_gone

DEADLINE_S = 60.0
WITHOUT_NATIVE = "SOFTNPU_WITHOUT_NATIVE"
LIST_DEVICES = "import openvino as ov; print(ov.Core().available_devices)"
SHOW = "import sys; print(sys.argv[1:])"
START = "from softnpu.tools.start import main; main()"
CHANGED = (
    "LD_AUDIT=",
    "GLIBC_TUNABLES=",
    "LD_LIBRARY_PATH=",
    "ZE_ENABLE_ALT_DRIVERS=",
    "SOFTNPU_SOCKET=",
    "SOFTNPU_PYTHON=",
    "SOFTNPU_SAVED_ENV=",
)
PROGRAM = """
import sys
from softnpu.driver import Driver
with Driver.open() as driver:
    sys.exit(print(driver.daemon_pid, file=sys.stderr))
"""
# a daemon started from inside, and the environment that it received
INSIDE = """
import os, subprocess, sys
from pathlib import Path
from softnpu.emulator.interface.endpoint import read_record
place = os.environ["SOFTNPU_SOCKET"] + "-inside"
def softnpu(*words):
    subprocess.run([sys.executable, "-P", "-m", "softnpu.tools.cli", *words, "--socket", place], check=True,
                   stdout=subprocess.DEVNULL)
softnpu("daemon")
try:
    found = Path(f"/proc/{read_record(Path(place)).pid}/environ").read_bytes()
    print(sorted(part.split(b"=", 1)[0].decode() for part in found.split(b"\\0") if part))
finally:
    softnpu("stop")
"""


def test_an_unmodified_program_finds_the_device(cli_daemon: Daemon, native_dir: dict[str, str]) -> None:
    done = softnpu("run", "--", sys.executable, "-c", LIST_DEVICES, **native_dir)
    assert "'NPU'" in done.words
    assert cli_daemon.alive


@pytest.mark.usefixtures("cli_daemon")
def test_a_workflow_gets_the_variables_of_the_shell(native_dir: dict[str, str]) -> None:
    shell = softnpu("env", **native_dir).words.splitlines()
    workflow = softnpu("env", "--github", **native_dir).words.splitlines()
    assert [shlex.split(line)[1] for line in shell] == workflow
    assert any(line.startswith("ZE_ENABLE_ALT_DRIVERS=") for line in workflow)
    broken = softnpu("env", "--github", **native_dir, LD_LIBRARY_PATH="/a\n/b")
    assert broken.code == 1
    assert "line break" in broken.err


@pytest.mark.parametrize("separator", [["--"], []], ids=["behind --", "without --"])
def test_arguments_are_passed_untouched(
    cli_daemon: Daemon, native_dir: dict[str, str], separator: list[str]
) -> None:
    given = ["--platform", "3720", "--", "--private", "", "a b", "--help"]
    done = softnpu("run", *separator, sys.executable, "-c", SHOW, *given, **native_dir)
    assert ast.literal_eval(done.words) == given
    assert cli_daemon.alive


@pytest.mark.parametrize(
    ("words", "variables", "quick"),
    [
        (["--", "env"], {}, True),
        (["env"], {}, True),
        (["--platform", "4000", "--", "env"], {}, False),
        (["env"], {"SOFTNPU_CLOCK": "host"}, False),
        (["env"], {"SOFTNPU_DEVICES": "4000"}, False),
    ],
)
def test_a_program_without_options_does_not_wait_for_the_command_line(
    cli_daemon: Daemon,
    native_dir: dict[str, str],
    words: list[str],
    variables: dict[str, str],
    quick: bool,
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-c", START, "run", *words],
        env={**os.environ, **native_dir, "SOFTNPU_SELF_CHECK": "", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert bool(imported & {"typer", "numpy"}) is not quick
    assert bool(imported & {"typing", "re", "socket", "msgspec", "pathlib"}) is not quick, "the program waits"
    found, expected = (
        {line for line in text.splitlines() if line.startswith(CHANGED)}
        for text in (done.stdout, softnpu("run", "--", "env", **native_dir).out)
    )
    assert found == expected
    assert len(found) == len(CHANGED)
    assert cli_daemon.alive


def test_a_failure_before_the_program_starts_is_reported_once(
    cli_daemon: Daemon, native_dir: dict[str, str]
) -> None:
    def ends(*words: str, **variables: str) -> tuple[int, str]:
        line = [sys.executable, "-P", "-c", START, "run", *words]
        environment = {**os.environ, **native_dir, **variables}
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        return done.returncode, done.stderr

    assert ends("no-such-program") == (
        127,
        "softnpu: program no-such-program: not found; expected a program in PATH, or its path\n",
    )
    code, said = ends("true", SOFTNPU_SPIN_US="much")
    assert (code, len(said.splitlines())) == (2, 1)
    assert "SOFTNPU_SPIN_US" in said
    assert ends()[0] == 2
    assert cli_daemon.alive


def test_the_exit_code_is_the_programs(
    cli_daemon: Daemon, native_dir: dict[str, str], tmp_path: Path
) -> None:
    def code(*program: str | Path) -> int:
        return softnpu("run", "--", *program, **native_dir).code

    (tmp_path / "plain").touch()
    assert [code("sh", "-c", "exit 7"), code("no-such-program"), code(tmp_path / "plain")] == [7, 127, 126]
    assert softnpu("run", "--private", "--", tmp_path / "plain", **native_dir).code == 126
    assert cli_daemon.alive


def test_a_signal_reaches_the_program_of_a_private_daemon(native_dir: dict[str, str]) -> None:
    waiting = "import signal; print('up', flush=True); signal.pause()"
    line = ["run", "--private", "--", sys.executable, "-c", waiting]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "softnpu.tools.cli", *line],
        env={**os.environ, **native_dir},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_ctrl_c_does_not_interrupt_the_end_of_a_private_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class Daemon:
        def __init__(self, _: Path) -> None:
            self.pid = 0

        def stop(self) -> list[private_daemon.Problem]:
            os.kill(os.getpid(), signal.SIGINT)
            ended.append("in order")
            return []

    monkeypatch.setattr(private_daemon, "PrivateDaemon", Daemon)
    before = signal.getsignal(signal.SIGINT)
    with private_daemon.private_daemon():
        pass
    assert ended == ["in order"]
    assert signal.getsignal(signal.SIGINT) is before


def test_devices_that_the_daemon_lacks_are_refused(cli_daemon: Daemon, native_dir: dict[str, str]) -> None:
    said = softnpu("run", "--platform", "3720", "--", "true", **native_dir).complaint
    assert "it runs with '4000'; expected '3720', as SOFTNPU_DEVICES or --platform asks for" in said
    assert "--private" in said
    assert cli_daemon.alive


def test_settings_that_the_daemon_lacks_are_refused_before_the_program_starts(
    cli_daemon: Daemon, native_dir: dict[str, str]
) -> None:
    for words in (["run", "--", "touch", "/softnpu-started"], ["env"]):
        said = softnpu(*words, SOFTNPU_INJECT="oom", **native_dir).complaint
        assert "it runs with 'none'; expected 'oom', as SOFTNPU_INJECT asks for" in said
    assert not Path("/softnpu-started").exists()
    assert cli_daemon.alive


def test_a_chosen_platform_goes_before_a_variable(native_dir: dict[str, str]) -> None:
    words = ("run", "--private", "--platform", "3720", "--", sys.executable, "-c", LIST_DEVICES)
    done = softnpu(*words, SOFTNPU_DEVICES="5010", SOFTNPU_STRICT="1", **native_dir)
    assert "'NPU'" in done.words


def test_a_private_daemon_has_the_chosen_devices_and_ends_with_the_program(
    native_dir: dict[str, str],
) -> None:
    code = (
        "import os, openvino as ov; print(os.environ['SOFTNPU_SOCKET']);"
        " print(ov.Core().get_property('NPU', 'DEVICE_ARCHITECTURE')); raise SystemExit(7)"
    )
    done = softnpu("run", "--private", "--platform", "3720", "--", sys.executable, "-c", code, **native_dir)
    place, platform = done.out.split()
    assert (done.code, platform) == (7, "3720")
    assert not Path(place).parent.exists()


def test_a_private_daemon_that_cannot_start_says_why(native_dir: dict[str, str]) -> None:
    run = ("run", "--private", "--", "true")
    died = softnpu(*run, SOFTNPU_INJECT="explode", **native_dir).misuse
    assert "no fault 'explode'" in died
    script = f'ulimit -n 20; exec "{sys.executable}" -P -m softnpu.tools.cli {" ".join(run)}'
    done = subprocess.run(
        ["sh", "-c", script], env={**os.environ, **native_dir}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "limit of descriptors: 20; expected 32 or more" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    folder = next((word for word in f"{died} {done.stderr}".split() if "/softnpu-private-" in word), "")
    assert not folder, "it is gone"


def _ends(native_dir: dict[str, str], before: str = "", **variables: str) -> tuple[int, str]:
    """Return exit code and errors of `softnpu run` with a program that says which daemon it meets."""
    line = f'{before}exec "{sys.executable}" -P -c "{START}" run "{sys.executable}" -P -c "$PROGRAM"'
    environment = {
        **os.environ,
        **native_dir,
        "SOFTNPU_SELF_CHECK": "",
        "SOFTNPU_AUTOSTART": "1",
        **variables,
    }
    done = subprocess.run(
        ["sh", "-c", line],
        env={**environment, "PROGRAM": PROGRAM},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stderr


def test_a_daemon_is_started_before_the_program(native_dir: dict[str, str], private_dir: Path) -> None:
    code, said = _ends(native_dir)
    pid = int(said)
    assert code == 0
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert words[4:6] == [b"--taken", os.fsencode(private_dir / "npu.sock")]
    assert _ends(native_dir) == (0, said), "the next one uses it as well"
    os.kill(pid, signal.SIGTERM)
    wait_gone(pid)


def test_programs_that_begin_at_once_have_one_daemon(native_dir: dict[str, str]) -> None:
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda _: _ends(native_dir), range(5)))
    ((code, said),) = set(ended)
    assert code == 0
    os.kill(int(said), signal.SIGTERM)
    wait_gone(int(said))


def test_ctrl_c_ends_it_silently_before_the_program_begins() -> None:
    code = """
import os, signal
from softnpu.tools import start
from softnpu.tools.run import quick_run
def interrupted(_):
    os.kill(os.getpid(), signal.SIGINT)
quick_run.try_to_run = interrupted
start.main()
"""
    done = subprocess.run([sys.executable, "-c", code, "run", "true"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    ("before", "variables", "code", "reason"),
    [
        ("ulimit -n 20; ", {}, 1, "limit of descriptors: 20; expected 32 or more"),
        ("", {"SOFTNPU_IDLE_S": "soon"}, 1, "SOFTNPU_IDLE_S: 'soon'"),
        ("", {"SOFTNPU_SPIN_US": "much"}, 2, "SOFTNPU_SPIN_US"),
        ("", {"SOFTNPU_DEVICES": "banana"}, 1, "'banana'"),
        ("chmod 777 {folder}; ", {}, 1, "others may write it (mode 777, no sticky bit)"),
        ("touch {folder}/npu.sock; ", {}, 1, "a regular file"),
        ("", {"SOFTNPU_SOCKET": "/nowhere/npu.sock"}, 1, "No such file or directory"),
        ("", {"SOFTNPU_LEASE": "some"}, 1, "Take another lease"),
    ],
)
def test_why_no_daemon_came_up_is_told_before_the_program_starts(
    native_dir: dict[str, str],
    private_dir: Path,
    before: str,
    variables: dict[str, str],
    code: int,
    reason: str,
) -> None:
    ended, said = _ends(native_dir, before.format(folder=private_dir), **variables)
    assert (ended, len(said.splitlines())) == (code, 1), said
    assert said.startswith("softnpu: ")
    assert reason in said


def test_a_missing_daemon_that_may_not_be_started_is_reported(native_dir: dict[str, str]) -> None:
    assert "softnpu daemon" in softnpu("run", "--", "true", **native_dir).complaint


def test_without_the_library_it_says_what_to_install(tmp_path: Path) -> None:
    complaint = softnpu("run", "--", "true", SOFTNPU_NATIVE_DIR=str(tmp_path)).complaint
    assert re.search(r"nstall g\+\+, .*pip install --force-reinstall --no-deps [\w/]+", complaint), complaint
    # pip itself fails without a compiler, and says how to do without one
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    build = project["tool"]["scikit-build"]
    (override,) = build["overrides"]
    assert (override["if"], override["wheel"]) == ({"env": {WITHOUT_NATIVE: True}}, {"cmake": False})
    assert all(word in build["messages"]["after-failure"] for word in ("g++", WITHOUT_NATIVE))


def test_a_daemon_started_inside_gets_the_outer_environment(native_dir: dict[str, str]) -> None:
    done = softnpu("run", "--private", "--", sys.executable, "-P", "-c", INSIDE, **native_dir)
    names = ast.literal_eval(done.words)
    assert "PATH" in names
    assert not {"LD_AUDIT", "LD_LIBRARY_PATH", "ZE_ENABLE_ALT_DRIVERS", "SOFTNPU_SAVED_ENV"} & set(names)


def test_env_prepares_a_shell_once(cli_daemon: Daemon, native_dir: dict[str, str]) -> None:
    ours = f"{sys.executable} -P -m softnpu.tools.cli env"
    script = f'set -e; eval "$({ours})"; {sys.executable} -c "{LIST_DEVICES}"; {ours}'
    done = subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, **native_dir},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()  # nothing is left to set the second time
    assert "'NPU'" in line
    assert cli_daemon.alive


def test_a_nested_environment_keeps_additions(tmp_path: Path) -> None:
    library = NativeLibrary(tmp_path / "libze_softnpu.so", tmp_path / "loader" / "libze_loader.so.1")
    before = {"LD_LIBRARY_PATH": "/a:/b", "HOME": "/root"}
    once = library.environment(tmp_path / "socket", before)
    assert once["LD_LIBRARY_PATH"] == f"{tmp_path}/loader:/a:/b"
    assert once["ZE_ENABLE_ALT_DRIVERS"] == str(library.driver)
    assert library.environment(tmp_path / "socket", once) == once
    assert saved_environment(once) == before
    later = {**once, "LD_LIBRARY_PATH": f"/c:{once['LD_LIBRARY_PATH']}"}
    twice = library.environment(tmp_path / "socket", later)
    assert twice["LD_LIBRARY_PATH"] == f"{tmp_path}/loader:/c:/a:/b"
