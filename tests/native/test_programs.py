"""C and C++ programs that use the driver as any program would."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import openvino as ov
from openvino import opset13 as ops

from tests.conftest import StartDaemon
from tests.native.conftest import ROOT, RunProgram, finished
from tests.support.waiting import wait_until


def test_empty_command_completes_its_round_trip(start_daemon: StartDaemon, program: RunProgram) -> None:
    start_daemon()
    median, ninth = map(float, program("round_trip", "500").split())
    assert 0 < median <= ninth


def test_many_threads_create_use_and_destroy_everything(
    start_daemon: StartDaemon, program: RunProgram, digits: Path
) -> None:
    daemon = start_daemon()
    said = program("churn", str(digits), str(digits.with_suffix(".bin")), "8", "200").splitlines()
    assert said[-1] == "done"
    assert daemon.engine().inferences > 8 * 190  # those in flight end with their queues
    wait_until(lambda: daemon.memory_used() == 0, what="the end of what the program had")


def test_contexts_are_created_on_every_device(start_daemon: StartDaemon, program: RunProgram) -> None:
    daemon = start_daemon(devices=("4000", "3720"))
    assert program("two_devices") == "done\n"
    wait_until(lambda: daemon.memory_used() == 0, what="the end of what the program had")


def test_lists_of_handles_need_an_array_of_their_size(start_daemon: StartDaemon, program: RunProgram) -> None:
    start_daemon()
    assert program("null_arrays") == "done\n"


def test_a_program_with_a_static_loader_runs_and_ends(start_daemon: StartDaemon, program: RunProgram) -> None:
    start_daemon()
    assert program("static_loader") == "done\nthe loader ends\n"


def test_of_a_queue_s_chain_only_the_first_link_is_read(
    start_daemon: StartDaemon, program: RunProgram
) -> None:
    start_daemon()
    assert program("older_queues") == "done\n"


def test_what_is_chained_to_an_argument_may_be_anything(
    start_daemon: StartDaemon, program: RunProgram, digits: Path
) -> None:
    start_daemon()
    assert program("older_graphs", str(digits), str(digits.with_suffix(".bin"))) == "image\n" * 2


def test_calls_from_the_last_destructors_of_a_program_can_log(
    start_daemon: StartDaemon, program: RunProgram
) -> None:
    start_daemon()
    log = "0x78000004 ZE_RESULT_ERROR_INVALID_ARGUMENT: gr"
    callers = ("thread", "thread-local", "main", "static")
    assert program("late_calls").splitlines() == [f"{caller}: {log}" for caller in callers]


def test_destroying_many_objects_costs_no_more_than_creating_them(
    start_daemon: StartDaemon, program: RunProgram
) -> None:
    start_daemon()
    made, ended = map(float, program("many_objects", "40000").split())
    assert ended < 2 * made


def test_hello_npu_in_c_builds_by_the_line_in_it(
    start_daemon: StartDaemon, surroundings: dict[str, str], tmp_path: Path, digits: Path
) -> None:
    daemon = start_daemon()
    source = ROOT / "tools" / "examples" / "hello_npu.c"
    lines = re.findall(r"^ \*     (?!softnpu)(.+)", source.read_text(), re.MULTILINE)
    assert "\n".join(lines) in (ROOT / "docs" / "native.md").read_text()
    line = "\n".join(["set -eu", *lines]).replace("python", shlex.quote(sys.executable))
    shutil.copy(source, tmp_path)
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True, timeout=60)
    said = finished([tmp_path / "hello_npu", digits], surroundings).stdout
    assert re.fullmatch(r"device: Intel.*\nclass \d of 10, score 0\.\d{6}\n", said)
    assert daemon.engine().inferences == 1
    x = ops.parameter([4], ov.Type.f64)
    ov.save_model(ov.Model([ops.abs(x)], [x]), tmp_path / "wide.xml")
    refused = finished([tmp_path / "hello_npu", tmp_path / "wide.xml"], surroundings, check=False)
    assert refused.stderr == "input: element type 5 of ov_element_type_e; expected F32, 4\n"
