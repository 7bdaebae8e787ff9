"""The driver's code under sanitizers (address, undefined behaviour, threads) and valgrind; for long.

pytest -m soak tests/native/test_verification.py
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from softnpu.driver.program_environment import ENV_COMPILER
from tests.conftest import StartDaemon
from tests.native.building import build, compile_program
from tests.native.conftest import RunProgram, finished
from tests.support.waiting import wait_until

DEADLINE_S = 1800.0
_UNKNOWN_CALL = re.compile(r"(--\d+-- )WARNING: unhandled amd64-linux syscall: 449\n(?:\1.*\n){4}")
"""Valgrind's words on `futex_waitv`, which it does not know: the driver manages without."""


@dataclass(frozen=True)
class Tool:
    """A checker: CMake options of the library, compiler flags of programs, the command to run them under."""

    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    under: tuple[str, ...] = ()


VALGRIND = ("valgrind", "-q", "--error-exitcode=99", "--fair-sched=yes", "--leak-check=full")
LEAKS = ("--show-leak-kinds=definite,indirect,possible", "--errors-for-leak-kinds=definite,indirect,possible")
TOOLS = {
    "address": Tool(("-DSOFTNPU_ADDRESS_SANITIZER=ON",), ("-fsanitize=address,undefined", "-g")),
    "thread": Tool(("-DSOFTNPU_THREAD_SANITIZER=ON",), ("-fsanitize=thread", "-g")),
    "valgrind": Tool(("-DCMAKE_BUILD_TYPE=RelWithDebInfo",), ("-g",), (*VALGRIND, *LEAKS)),
}
STRICT = {
    "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "exitcode=66",
}
MODEL = "the XML and the weights of a small model"
PROGRAMS = {
    "round_trip": ["200"],
    "churn": [MODEL, "8", "500"],
    "two_devices": [],
}


def words(program: str, digits: Path) -> list[str]:
    """Return the arguments of a program."""
    model = [str(digits), str(digits.with_suffix(".bin"))]
    return [word for given in PROGRAMS[program] for word in (model if given == MODEL else [given])]


@pytest.mark.soak
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("tool", TOOLS)
def test_driver_is_clean(
    tool: str,
    program: str,
    start_daemon: StartDaemon,
    private_dir: Path,
    tmp_path: Path,
    digits: Path,
    surroundings: dict[str, str],
) -> None:
    watched = TOOLS[tool]
    if watched.under and shutil.which(watched.under[0]) is None:
        pytest.skip(f"no {watched.under[0]} here")
    library = build(*watched.options)
    made = compile_program(program, library, tmp_path, *watched.flags)
    daemon = start_daemon(devices=("4000", "3720"))
    surroundings.pop("LD_AUDIT", None)
    surroundings[ENV_COMPILER] = "installed"  # no audit library: the tools do not work with one
    environment = {**library.environment(private_dir / "npu.sock", surroundings), **STRICT}
    command: list[str | Path] = [*watched.under, made, *words(program, digits)]
    done = finished(command, environment, deadline_s=DEADLINE_S)
    assert _UNKNOWN_CALL.sub("", done.stderr) == ""
    wait_until(lambda: daemon.memory_used() == 0, what="the end of what the program had")


@pytest.mark.soak
@pytest.mark.timeout(DEADLINE_S)
def test_hundred_thousand_inferences_leave_nothing_behind(
    start_daemon: StartDaemon, program: RunProgram, digits: Path
) -> None:
    daemon = start_daemon()
    said = program("churn", str(digits), str(digits.with_suffix(".bin")), "8", "12500")
    (early, opened), (late, still_open) = (map(int, line.split()) for line in said.splitlines()[:2])
    print(f"{early} kB and {opened} descriptors after a tenth, {late} kB and {still_open} at the end")
    assert still_open == opened
    assert late - early < 4096, "what nine tenths of the work added"
    wait_until(lambda: daemon.memory_used() == 0, what="the end of what the program had")
    engine = daemon.engine()
    # one of fifty is in flight when its queue is destroyed, which cancels it
    assert 8 * 12500 * 49 // 50 <= engine.inferences <= 8 * 12500
    assert (engine.restarts, engine.contexts, engine.queues, engine.graphs) == (0, 0, 0, 0)
