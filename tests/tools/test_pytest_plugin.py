"""The pytest plugin, as used by the author of another program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 120.0
PROLOGUE = """
import os, subprocess, sys
import numpy as np, openvino as ov
DIGITS = os.environ["DIGITS"]
"""
IN_PROCESS = (
    PROLOGUE
    + """
def test_openvino(softnpu_device):
    core = ov.Core()
    model = core.read_model(DIGITS)
    model.reshape([1, 1, 8, 8])
    image = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    ours = core.compile_model(model, "NPU")([image])[0]
    theirs = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([image])[0]
    assert np.array_equal(ours, theirs)

def devices(environment):
    code = "import openvino as ov; print(*ov.Core().available_devices)"
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()

def test_other_programs(softnpu_device):
    assert "NPU" in devices(softnpu_device.environment)
    assert "NPU" in devices(None)
"""
)
PLATFORM = """
import openvino as ov
def test_platform(softnpu_device):
    assert ov.Core().get_property("NPU", "DEVICE_ARCHITECTURE") == "3720"
"""
FAILING = """
def test_it(softnpu_device):
    environment = softnpu_device.environment
    assert "SOME_OTHER" in environment
"""
MARKS = (
    PROLOGUE
    + """
import pytest
from softnpu.driver import Driver
def infer():
    core = ov.Core()
    model = core.read_model(DIGITS)
    model.reshape([1, 1, 8, 8])
    core.compile_model(model, "NPU")([np.ones((1, 1, 8, 8), np.float32)])

def platform():
    return ov.Core().get_property("NPU", "DEVICE_ARCHITECTURE")

@pytest.mark.npu(platform="3720")
def test_mark_alone():
    assert platform() == "3720"

@pytest.mark.npu(faults="compile-fail")
def test_faults():
    with pytest.raises(RuntimeError):
        infer()
    infer()

@pytest.mark.npu(platform=["5010", "3720"])
class TestClass:
    def test_two_devices(self, softnpu_test_device):
        with Driver.open(softnpu_test_device.socket, autostart=False) as driver:
            assert [device.info.platform for device in driver.devices] == ["5010", "3720"]

    @pytest.mark.npu
    def test_the_closest_mark_counts_and_a_fault_lasts_for_a_block(self, softnpu_test_device):
        assert platform() == "4000"
        with softnpu_test_device.fault("compile-fail"), pytest.raises(RuntimeError):
            infer()
        infer()
"""
)
NESTED = """
import openvino as ov, pytest
@pytest.mark.npu
def test_short(): ov.Core().available_devices
def test_session(softnpu_device): ov.Core().available_devices
@pytest.mark.npu(platform="3720")
def test_nested(): pass
"""
MODULE = """
import pytest
from softnpu.driver import Driver
pytestmark = pytest.mark.npu(platform="3720")
seen = []
def test_one(softnpu_module_device):
    seen.append(softnpu_module_device.socket)
def test_same(softnpu_module_device):
    with Driver.open(softnpu_module_device.socket, autostart=False) as driver:
        assert driver.devices[0].info.platform == "3720"
    assert seen == [softnpu_module_device.socket]
def test_another(softnpu_test_device):
    assert not seen[0].samefile(softnpu_test_device.socket)
@pytest.mark.npu(platform="4000")
def test_too_late(softnpu_module_device): pass
def test_too_short(softnpu_device): pass
@pytest.mark.npu(platfrom="4000")
def test_misspelt(): pass
@pytest.mark.npu(platform=4000)
def test_number(): pass
"""
WRONG_MARKS = (
    "softnpu_module_device: it lasts longer than the mark npu of test_too_late; use pytestmark of the module",
    "softnpu_device: it lasts longer than the mark npu of test_theirs.py; use softnpu_module_device or",
    "it got an unexpected keyword argument 'platfrom'; expected platform=, faults=, strict=, check=",
    "mark npu: 4000 is neither a text nor a list of texts; expected platform=, faults=, strict=, check=",
)
"""Expected output for the last tests of `MODULE`."""
CHECKED = (
    PROLOGUE
    + """
import pytest
from softnpu.driver import Driver
def copy_fresh(written):
    with Driver.open() as driver:
        context = driver.devices[0].create_context()
        source, target = context.alloc_host(4096), context.alloc_host(4096)
        if written:
            source.view()[:] = 1
        commands = context.create_command_list()
        commands.append_memory_copy(target, source, 4096)
        commands.close()
        queue = context.create_command_queue()
        queue.execute_command_lists([commands])
        queue.synchronize()

def infer_fresh(written):
    core = ov.Core()
    model = core.read_model(DIGITS)
    model.reshape([1, 1, 8, 8])
    request = core.compile_model(model, "NPU").create_infer_request()
    tensor = core.get_default_context("NPU").create_host_tensor(ov.Type.f32, ov.Shape([1, 1, 8, 8]))
    if written:
        tensor.data[:] = 1
    request.set_input_tensor(tensor)
    request.infer()

@pytest.mark.npu
def test_unchecked():
    copy_fresh(False)
@pytest.mark.npu(check=True)
@pytest.mark.parametrize("program", [copy_fresh, infer_fresh])
@pytest.mark.parametrize("written", [False, True, False])
def test_in_process(program, written):
    program(written)
@pytest.mark.npu(check=True)
def test_in_another_process():
    code = "import test_theirs; test_theirs.copy_fresh(False)"
    subprocess.run([sys.executable, "-c", code], check=True)
@pytest.mark.npu(check=True)
def test_fails_anyhow():
    copy_fresh(False)
    assert 1 == 2
"""
)
WHO = """
import os, pytest
@pytest.mark.parametrize("number", range(4))
def test_who(softnpu_device, number):
    with open(os.environ["SEEN"], "a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {softnpu_device.socket}\\n")
"""


def _pytest(
    folder: Path, tests: str, environment: dict[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    (folder / "test_theirs.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    # no other installed plugin takes part, and an installed softnpu does not load its plugin twice
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    # in CI pytest's summary has each error whole, a second time
    here = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "softnpu.tools.pytest_plugin", *options],
        cwd=folder,
        env={**here, **alone, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_unmodified_openvino_finds_the_device(
    tmp_path: Path, native_dir: dict[str, str], digits: Path
) -> None:
    done = _pytest(tmp_path, IN_PROCESS, {**native_dir, "DIGITS": str(digits)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_platform_is_chosen_and_a_failing_test_prints_no_variable_of_the_user(
    tmp_path: Path, native_dir: dict[str, str]
) -> None:
    variables = {**native_dir, "MY_TOKEN": "a-secret"}
    done = _pytest(tmp_path, PLATFORM + FAILING, variables, "--softnpu-platform", "3720", "--showlocals")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "SoftnpuDevice(socket=" in done.stdout
    assert "a-secret" not in done.stdout + done.stderr


def test_every_worker_has_its_own_daemon(tmp_path: Path, native_dir: dict[str, str]) -> None:
    seen = tmp_path / "seen"
    done = _pytest(tmp_path, WHO, {**native_dir, "SEEN": str(seen)}, "-p", "xdist.plugin", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = {tuple(line.split()) for line in seen.read_text().splitlines()}
    assert len(pairs) == len({worker for worker, _ in pairs}) == len({place for _, place in pairs}) == 2
    assert not any(Path(place).exists() for _, place in pairs)


@pytest.mark.parametrize("wrong", ["library", "platform"])
def test_without_a_device_every_test_has_one_line_that_says_why(
    tmp_path: Path, native_dir: dict[str, str], wrong: str
) -> None:
    tests = "def test_it(softnpu_device): pass\ndef test_that(softnpu_device): pass\n"
    options = ("--softnpu-platform", "9999") if wrong == "platform" else ()
    variables = native_dir if wrong == "platform" else {"SOFTNPU_NATIVE_DIR": str(tmp_path)}
    done = _pytest(tmp_path, tests, variables, *options)
    assert done.returncode == 1
    said = [line for line in done.stdout.splitlines() if line.startswith("softnpu_device: ")]
    assert len(said) == 2, done.stdout
    assert all(("'9999'; expected 3720" if wrong == "platform" else "nstall g++") in line for line in said)
    assert "Traceback" not in done.stdout


def test_marks_configure_the_device_of_a_test(
    tmp_path: Path, native_dir: dict[str, str], digits: Path
) -> None:
    done = _pytest(tmp_path, MARKS, {**native_dir, "DIGITS": str(digits)}, "--strict-markers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_checked_test_fails_with_what_its_programs_do_wrong(
    tmp_path: Path, native_dir: dict[str, str], digits: Path
) -> None:
    done = _pytest(tmp_path, CHECKED, {**native_dir, "DIGITS": str(digits)}, "-rfE")
    assert "6 failed, 3 passed, 1 error" in done.stdout, done.stdout + done.stderr
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert sorted(name.partition("::")[2] for name in failed) == [
        "test_fails_anyhow", "test_in_another_process",
        "test_in_process[False0-copy_fresh]", "test_in_process[False0-infer_fresh]",
        "test_in_process[False1-copy_fresh]", "test_in_process[False1-infer_fresh]",
    ]  # fmt: skip
    assert done.stdout.count("uninitialised-read: the device reads 4,096 bytes that nobody wrote") == 4
    assert done.stdout.count("uninitialised-read: the device reads 256 bytes that nobody wrote") == 2
    assert done.stdout.count("ERROR at teardown of test_fails_anyhow") == 1


def test_a_device_invisible_to_openvino_gives_a_warning(tmp_path: Path, native_dir: dict[str, str]) -> None:
    done = _pytest(tmp_path, NESTED, native_dir)
    assert "3 passed, 1 warning" in done.stdout, done.stdout + done.stderr
    assert "SoftnpuWarning: softnpu_test_device: this process has a session" in done.stdout


def test_marks_that_do_not_fit_a_module_scoped_device_are_errors(
    tmp_path: Path, native_dir: dict[str, str]
) -> None:
    done = _pytest(tmp_path, MODULE, native_dir)
    assert "3 passed, 4 errors" in done.stdout, done.stdout + done.stderr
    assert all(words in done.stdout for words in WRONG_MARKS), done.stdout
    assert "Traceback" not in done.stdout
    assert "During handling" not in done.stdout


def test_tests_are_skipped_with_the_next_step_on_request(tmp_path: Path) -> None:
    tests = "import pytest\n@pytest.mark.npu\ndef test_it(): pass\ndef test_that(softnpu_device): pass\n"
    variables = {"SOFTNPU_NATIVE_DIR": str(tmp_path)}
    done = _pytest(tmp_path, tests, variables, "--softnpu-missing", "skip", "-rs", "-vv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 skipped" in done.stdout
    said = " ".join(done.stdout.split())
    for fixture in ("softnpu_test_device", "softnpu_device"):
        assert f"{fixture}: native driver: no file" in said
    assert "install g++" in said.lower()


def test_it_needs_no_command_line_package(tmp_path: Path, native_dir: dict[str, str]) -> None:
    block = "import sys\nsys.modules.update(dict.fromkeys(('typer', 'rich', 'platformdirs', 'posix_ipc')))\n"
    tests = block + "def test_it(softnpu_device):\n    assert softnpu_device.socket.exists()\n"
    done = _pytest(tmp_path, tests, native_dir)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_costs_nothing_when_unused() -> None:
    program = (
        "import softnpu.tools.pytest_plugin, sys; "
        "heavy = {'openvino', 'numpy', 'msgspec', 'typer'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)
