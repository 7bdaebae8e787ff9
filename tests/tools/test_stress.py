"""`softnpu stress` survives deaths and faults, reports findings, and plans by its seed alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from softnpu.emulator.interface.messages import DeviceInfo, EngineStatus, SessionStatus, StatusAnswer
from softnpu.tools import cli
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.stress import daemon_usage, fault_operations, operations, workloads
from softnpu.tools.stress.cli import chosen_seeds
from softnpu.tools.stress.coordinator import Options, State
from softnpu.tools.stress.daemon_usage import Sample, growths
from softnpu.tools.stress.plan import FAULTS, OPERATIONS, Plan
from softnpu.tools.stress.reclaim_latency import Death, Deaths
from softnpu.tools.stress.reports import Failure
from softnpu.tools.stress.result import StressResult, evaluate
from tests.support.cli import run_program, softnpu
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

MIB = 1 << 20


# ------------------------------------------------------------ runs


def test_eight_dying_clients_on_a_device_with_faults() -> None:
    told = softnpu(
        "stress", "--clients", "8", "--seconds", "10", "--kill", "--faults", "--seed", "3", "--json"
    )
    result = msgspec.json.decode(told.words, type=StressResult)
    assert result.passed
    assert result.failures == []
    assert result.results_checked > 0
    assert result.client_deaths > 0
    assert result.processes >= result.clients + result.client_deaths - 1
    assert sum(result.operations.values()) > 0
    assert "passed: seed 3" in told.err, "what a person reads goes to stderr, beside the document"
    assert result.repeat == "softnpu stress --clients 8 --seconds 10 --kill --faults --seed 3"


def test_a_running_daemon_is_used_with_the_users_model_and_left_unchanged(
    daemon: Daemon, digits: Path
) -> None:
    before = daemon.engine()
    words = softnpu(
        "stress", "--clients", "1", "--seconds", "4", "--seeds", "4", "--model", "perceptron",
        "--model", digits, "--socket", daemon.socket,
    ).words  # fmt: skip
    assert "1 seeds, " in words
    assert "all passed" in words
    assert daemon.engine().inferences > 0

    def as_before() -> bool:
        after = daemon.engine()
        return (after.memory_used, after.contexts) == (before.memory_used, before.contexts)

    wait_until(as_before, what="all that the clients had given back")
    assert daemon.engine().restarts == 0


def test_results_of_several_seeds_are_one_document_despite_an_interruption(
    monkeypatch: pytest.MonkeyPatch, digits: Path
) -> None:
    def run(options: Options, *_: object) -> StressResult:
        if options.seed == 9:
            raise KeyboardInterrupt
        return evaluate(State(options=options, models=[options.models[0]], results_checked=5), [], [])

    monkeypatch.setattr("softnpu.tools.stress.cli._run", run)
    arguments = ["stress", "--clients", "1", "--seeds", "4-5,9", "--model", str(digits), "--json"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 128 + signal.SIGINT
    results = [msgspec.convert(each, StressResult) for each in json.loads(done.stdout)["results"]]
    assert [result.seed for result in results] == [4, 5]
    assert results[1].repeat == f"softnpu stress --clients 1 --seconds 20 --seed 5 --model {digits}"


def test_invalid_seeds_are_refused() -> None:
    for seeds in ("", "5-4", "1,x", "-3", "1-99999", "٣"):
        with pytest.raises(ToolError, match="expected numbers such as 1-10 or 3,5,8"):
            chosen_seeds(None, seeds)
    with pytest.raises(ToolError, match="together with --seed 3"):
        chosen_seeds(3, "1-2")


def test_a_wrong_bit_in_a_reference_fails_the_run(private_dir: Path) -> None:
    """The reference itself is altered, so every client that meets it must complain."""
    program = private_dir / "run.py"
    program.write_text(
        "import sys, numpy as np\n"
        "from softnpu.tools.stress import coordinator\n"
        "honest = coordinator.make_references\n"
        "def seeded(folder, seed, models):\n"
        "    found = honest(folder, seed, models)\n"
        "    for workload in found:\n"
        "        with np.load(workload.archive) as archive:\n"
        "            arrays = dict(archive)\n"
        "        for name in arrays:\n"
        "            if name.startswith('out.'):\n"
        "                arrays[name].view(np.uint8).reshape(-1)[0] ^= 1\n"
        "        np.savez(workload.archive, **arrays)\n"
        "    return found\n"
        "coordinator.make_references = seeded\n"
        "from softnpu.tools.cli import main\n"
        "main()\n"
    )
    told = run_program(
        program, "stress", "--clients", "2", "--seconds", "3", "--seed", "1", "--model", "perceptron",
        TMPDIR=str(private_dir),
    )  # fmt: skip
    assert told.code == 1, told.out + told.err
    assert "wrong: client" in told.out
    assert "output 0: 1 of" in told.out
    assert "failed, again with: softnpu stress --clients 2 --seconds 3 --seed 1" in told.out


def test_an_invalid_model_is_reported_in_one_line(private_dir: Path) -> None:
    complaint = softnpu("stress", "--model", "/no/such/model.xml").misuse
    assert "no such file; expected a file, or one of digits, perceptron, " in complaint
    nothing = private_dir / "nothing.xml"
    nothing.write_text("<net/>")
    assert "nothing.xml" in softnpu("stress", "--model", nothing, "--seconds", "1").complaint


# ------------------------------------------------------------ plan


def test_the_plan_depends_on_the_seed_alone() -> None:
    one, same, other = (Plan(seed, 8, 6, True, True) for seed in (7, 7, 8))
    steps = [one.step(client, number) for client in range(8) for number in range(200)]
    assert steps == [same.step(client, number) for client in range(8) for number in range(200)]
    assert steps != [other.step(client, number) for client in range(8) for number in range(200)]
    assert [one.pause(n) for n in range(9)] == [same.pause(n) for n in range(9)]


def test_deaths_and_faults_are_planned_only_on_request() -> None:
    plan = Plan(7, 8, 6, False, False)
    steps = [plan.step(client, number) for client in range(8) for number in range(500)]
    assert not any(step.death for step in steps)
    assert {step.operation for step in steps} == set(operations.ALL)
    plan = Plan(7, 8, 6, True, True)
    steps = [plan.step(client, number) for client in range(8) for number in range(6000)]
    assert {step.operation for step in steps} == set(OPERATIONS)
    assert len({step.death.point for step in steps if step.death}) > 10
    early = {plan.step(client, number).operation for client in range(8) for number in range(10)}
    assert {f"fault {kind}" for kind in FAULTS[:14]} <= early, "also short runs meet them"
    assert set(OPERATIONS) == {*operations.ALL, *(f"fault {kind}" for kind in FAULTS)}
    assert set(FAULTS) == {*fault_operations.SUBMISSIONS, *fault_operations.REQUESTS}


# ------------------------------------------------------------ result


def _sample(at: float, supervisor: int = 16 * MIB, engine: int = 60 * MIB) -> Sample:
    return Sample(
        at=at, operations=int(at * 200), supervisor=supervisor, engine=engine, descriptors=12,
        engine_descriptors=9, threads=1, children=2, sessions=4, device_memory=0, orphaned=0, restarts=0,
    )  # fmt: skip


def _state(seconds: float, samples: list[Sample], failures: list[Failure] | None = None) -> State:
    options = Options(clients=4, seconds=seconds, kill=True, faults=False, seed=9)
    return State(
        options=options, models=["digits"], samples=samples, operations={"infer": 5}, results_checked=5,
        failures=failures or [],
    )  # fmt: skip


def test_a_growing_supervisor_is_a_leak() -> None:
    flat = [_sample(float(at)) for at in range(600)]
    growing = [_sample(float(at), supervisor=16 * MIB + at * 4000) for at in range(600)]
    assert evaluate(_state(600, flat), [], []).passed
    result = evaluate(_state(600, growing), [], [])
    assert not result.passed
    assert [failure.kind for failure in result.failures] == ["leak"]
    assert "memory of the supervisor grew from 16.6" in result.failures[0].text


def test_growth_counts_after_the_first_minute_and_not_while_an_engine_loads() -> None:
    warm = [_sample(float(at), supervisor=(8 if at < 55 else 16) * MIB) for at in range(600)]
    (supervisor, daemon) = growths(warm, 600)
    assert (supervisor.what, daemon.what) == ("supervisor", "daemon")
    assert supervisor.share == daemon.share == 0.0
    starved = [
        msgspec.structs.replace(sample, operations=int(sample.at) * 40, supervisor=size * MIB)
        for sample, size in zip(warm, [8] * 120 + [16] * 480, strict=True)
    ]
    assert [growth.share for growth in growths(starved, 600)] == [0.0, 0.0]
    loads = [_sample(float(at), engine=(60 if at % 30 > 3 else 20) * MIB) for at in range(600)]
    samples = [msgspec.structs.replace(sample, restarts=int(sample.at) // 30) for sample in loads]
    assert [growth.share for growth in growths(samples, 600)] == [0.0, 0.0]
    assert growths(samples, 600)[1].early == 76 * MIB


def test_a_short_run_has_a_fixed_allowance() -> None:
    def run(more: int) -> StressResult:
        samples = [_sample(float(at), supervisor=16 * MIB + (more if at > 16 else 0)) for at in range(20)]
        return evaluate(_state(20, samples), [], [])

    assert run(MIB).passed
    assert not run(3 * MIB).passed


def test_a_death_noticed_late_is_a_failure() -> None:
    soon = Death(client=0, pid=1, session=1, at=10.0, noticed=10.01, back=10.02)
    late = Death(client=1, pid=2, session=2, at=10.0, noticed=10.3, back=10.4)
    starved = Death(client=1, pid=2, session=2, at=10.0, noticed=10.3, back=10.4, waited=0.25)
    samples = [_sample(float(at)) for at in range(600)]
    assert evaluate(_state(600, samples), [soon, starved], []).passed
    result = evaluate(_state(600, samples), [soon, late], [])
    assert "noticed after 300 ms" in result.failures[0].text
    assert result.noticed_clock.maximum == pytest.approx(0.3)


def test_a_client_failure_names_the_client_and_the_command_to_repeat() -> None:
    failure = Failure(kind="wrong", client=3, step=17, operation="infer", text="output 0 differs by 2")
    result = evaluate(_state(20, [], [failure]), [], [])
    assert str(result.failures[0]) == "wrong: client 3, step 17 (infer): output 0 differs by 2"
    assert result.repeat == "softnpu stress --clients 4 --seconds 20 --kill --seed 9"


# ------------------------------------------------------------ deaths


def _status(sessions: dict[int, int], used: int, restarts: int = 0) -> StatusAnswer:
    info = DeviceInfo(
        index=0, platform="4000", name="", device_id=0, revision=0, tiles=6, slices=1, simd_width=1,
        eus_per_subslice=1, core_clock_mhz=1, timer_ns_per_tick=1.0, memory_total=1 << 30, uuid=b"",
    )  # fmt: skip
    engine = EngineStatus(
        device=info, engine_pid=os.getpid(), state="ready", restarts=restarts, memory_used=used, contexts=0,
        queues=0, graphs=0, images=0, submissions=0, commands=0, inferences=0, faults=0, busy_ns=0,
        staged_bytes=0, heartbeat_ns=0,
    )  # fmt: skip
    listed = [
        SessionStatus(
            session=pid, pid=pid, client="", role="session", memory_used=memory, contexts=1, allocations=1,
            queues=1, graphs=0,
        )
        for pid, memory in sessions.items()
    ]  # fmt: skip
    return StatusAnswer(
        pid=os.getpid(), server="", socket="", uptime_s=1.0, interface="1.0", compiler_pids=(),
        engines=(engine,), session_count=len(listed), sessions=tuple(listed),
    )  # fmt: skip


def test_a_death_is_noticed_before_its_memory_is_released() -> None:
    deaths = Deaths()
    deaths.update(_status({5: 100, 6: 20}, 120), 0.0, False)
    deaths.note(0, 5, 5, 1.0)
    deaths.update(_status({5: 100, 6: 20}, 120), 1.01, False)
    deaths.update(_status({6: 20}, 120), 1.02, False)
    assert deaths.pending
    deaths.update(_status({6: 20}, 20), 1.03, False)
    (death,) = deaths.done
    assert (death.noticed, death.back, death.reset) == (1.02, 1.03, False)


def test_memory_that_is_never_released_is_reported() -> None:
    assert daemon_usage.orphaned(_status({5: 100, 6: 20}, 120)) == 0
    assert daemon_usage.orphaned(_status({6: 20}, 120)) == 100
    deaths = Deaths()
    deaths.update(_status({5: 100}, 100), 0.0, False)
    deaths.note(0, 5, 5, 1.0)
    deaths.update(_status({}, 100), 1.5, False)
    assert deaths.overdue(1.9) == []
    (text,) = deaths.overdue(60.0)
    assert "its memory is not back after 1 s" in text
    assert not deaths.pending


def test_the_largest_difference_covers_numbers_and_non_finite_values() -> None:
    one = np.array([1.0, 2.0, np.nan], np.float32)
    assert workloads.largest_difference(one, np.array([1.0, 2.5, np.nan], np.float32)) == 0.5
    assert workloads.largest_difference(one, np.array([1.0, 2.0, 3.0], np.float32)) == np.inf
