"""`softnpu inject`: its output, what it refuses, and the ways to start a daemon with faults."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, ZeResult, faults
from softnpu.emulator.interface.injections import KINDS, Injection, kind_of
from tests.support.cli import softnpu
from tests.support.daemon import Daemon
from tests.support.waiting import wait_gone
from tests.support.work import failure

_ROOT = Path(__file__).parents[2]
OUT_OF_MEMORY = """
import openvino as ov, sys
core = ov.Core()
model = core.read_model(sys.argv[1])
model.reshape([1, 1, 8, 8])
try:
    core.compile_model(model, "NPU").create_infer_request().infer()
except RuntimeError as failure:
    print(failure)
"""


def test_a_fault_is_requested_listed_and_removed(daemon: Daemon, context: Context) -> None:
    said = softnpu("inject", "oom", "--value", "host", "--after", "1", "--count", "2").words
    assert said == "injection 1: oom host, 2 operations, after 1\n"
    context.alloc_host(64)
    failure(lambda: context.alloc_host(64), ZeResult.ERROR_OUT_OF_HOST_MEMORY)

    words = softnpu("inject", "status").words
    (row,) = [line for line in words.splitlines() if "oom" in line]
    assert row.split() == ["1", "oom", "host", "active", "1", "of", "2", "2", "after", "1"]
    assert "injected faults: 1 active, 1 hits ('softnpu inject status')" in softnpu("status").words

    assert softnpu("inject", "clear", "1").words == "1 injection removed\n"
    context.alloc_host(64)
    assert softnpu("inject", "status").words == "no injections\n"
    assert "injected" not in softnpu("status").words
    assert daemon.alive


def test_every_option_reaches_the_daemon(driver: Driver) -> None:
    arguments = ("--device", "0", "--session", str(driver.session), "--probability", "0.25", "--seed", "7")
    said = softnpu("inject", "slow", "--value", "3x", "--count", "*", *arguments).words
    told = f"slow 3x, every operation, probability 0.25 with seed 7, device 0, session {driver.session}"
    assert said == f"injection 1: {told}\n"
    (state,) = json.loads(softnpu("inject", "status", "--json").words)["injections"]
    expected = {"id": 1, "kind": "slow", "state": "active", "matched": 0, "hits": 0, "value": "3x"}
    chosen = {"device": 0, "sessions": [driver.session], "count": None, "probability": 0.25, "seed": 7}
    assert state == {**expected, **chosen, "after": 0}


@pytest.mark.usefixtures("cli_daemon")
def test_impossible_faults_are_refused() -> None:
    for arguments, said in (
        (("reset", "--session", "99"), "injection of reset: session 99; expected a session"),
        (("reset", "--seed", "3"), "option --seed: given without --probability"),
        (("reset", "--value", "now"), "injection of reset: value 'now'; expected no value"),
        (("disconnect", "--device", "0"), "injection of disconnect: device 0; expected none"),
        (("refuse",), "expected a request such as queue_create"),
        (("clear", "5"), "injection: id 5; expected no id: there is none"),
    ):
        assert said in softnpu("inject", *arguments).misuse
        assert faults.status() == []
    done = softnpu("inject", "explode")
    assert done.code == 2
    assert "explode" in done.err


def test_without_a_daemon_it_says_how_to_start_one() -> None:
    assert "start one with 'softnpu daemon'" in softnpu("inject", "reset").complaint.lower()


def test_a_daemon_is_started_with_faults() -> None:
    try:
        softnpu("daemon", "--inject", "hang:after=3, slow=20ms:count=*:probability=0.1:seed=7")
        assert [(state.kind, state.value) for state in faults.status()] == [("hang", ""), ("slow", "20ms")]
    finally:
        softnpu("stop")


def test_a_daemon_is_not_started_with_invalid_faults() -> None:
    assert "injection 'hang:x=1': 'x=1'" in softnpu("daemon", "--inject", "hang:x=1").misuse
    assert "no fault 'explode'" in softnpu("daemon", SOFTNPU_INJECT="explode").misuse


def test_an_automatically_started_daemon_has_the_faults_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOFTNPU_AUTOSTART", "1")
    monkeypatch.setenv("SOFTNPU_IDLE_S", "1")
    monkeypatch.setenv("SOFTNPU_INJECT", "explode")
    assert "no fault 'explode'" in str(failure(Driver.open, ZeResult.ERROR_UNINITIALIZED))
    monkeypatch.setenv("SOFTNPU_INJECT", "oom")
    with Driver.open() as driver, driver.devices[0].create_context() as context:
        pid = driver.daemon_pid
        failure(lambda: context.alloc_host(64), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
    wait_gone(pid)


def test_a_private_daemon_has_the_faults_of_the_environment(
    native_dir: dict[str, str], digits: object
) -> None:
    program = [sys.executable, "-c", OUT_OF_MEMORY, str(digits)]
    done = softnpu("run", "--private", "--", *program, SOFTNPU_INJECT="oom", **native_dir)
    assert "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY" in done.words


def test_the_document_has_every_kind_with_existing_tests() -> None:
    text = (_ROOT / "docs" / "faults.md").read_text()
    assert [kind for kind in KINDS if not re.search(rf"^- .*\*\*`{kind}`\*\*", text, re.MULTILINE)] == []
    named = set(re.findall(r"`(test_\w+)`", text))
    tests = "".join(path.read_text() for path in (_ROOT / "tests" / "emulator").glob("test_faults*.py"))
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_the_commands_of_the_document_are_understood() -> None:
    text = (_ROOT / "docs" / "faults.md").read_text()
    for command in re.findall(r"`([a-z-]+(?: --[a-z]+ [\w=*]+)+)`", text):
        kind, *options = command.split()
        given = dict(zip(options[::2], options[1::2], strict=True))
        Injection(kind=kind_of(kind), value=given.get("--value", "")).check()
