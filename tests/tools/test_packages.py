"""What is installed: requirements against imports, the check of packages, files for other machines."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from softnpu.driver import Driver
from softnpu.emulator.interface import endpoint
from tests.support.waiting import wait_until

pytestmark = pytest.mark.quick

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_OPTIONAL = {"posix_ipc", "ray", "torch", "pytest", "wasmtime"}
"""Optional modules, imported only where they are installed."""
_PYTEST_FILES = ("tools/pytest_plugin.py", "tools/shared/private_daemon.py", "tools/shared/failures.py")


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", each)[0].lower() for each in requirements}


def _imported(*paths: Path) -> set[str]:
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"softnpu"}


def test_the_base_installation_covers_imports_of_daemon_driver_and_plugin() -> None:
    base = _names(_PROJECT["dependencies"])
    parts = [path for part in ("emulator", "driver", "plugin") for path in (_ROOT / part).rglob("*.py")]
    assert _imported(*parts) - _OPTIONAL == base
    assert _imported(*(_ROOT / name for name in _PYTEST_FILES)) - _OPTIONAL <= base


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_names_what_a_base_installation_lacks(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from softnpu.tools import start; start.main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"softnpu: the command line needs {package}, which is not installed.")
    said = set(line.partition(" -m pip install ")[2].split())
    assert said == _names(_PROJECT["optional-dependencies"]["tools"])


_LIBRARY = b"\0GLIBC_2.4\0GLIBC_2.27\0"
_WHEEL = {
    "softnpu/__init__.py": b"",
    **{f"softnpu/{part}/py.typed": b"" for part in ("emulator", "driver", "plugin", "tools", "farm")},
    "softnpu/driver/native/lib/libze_softnpu.so": _LIBRARY,
    "softnpu/driver/native/lib/loader/libze_loader.so.1": _LIBRARY,
    "softnpu/driver/native/lib/engine/libsoftnpu_engine.so": _LIBRARY,
    "softnpu/driver/native/lib/libsoftnpu_guard.so": _LIBRARY,
    "softnpu/driver/native/lib/libsoftnpu_submit.so": _LIBRARY,
    "softnpu-0.dist-info/METADATA": "".join(
        f"Requires-Dist: {each}\n" for each in _PROJECT["dependencies"]
    ).encode()
    + b"Requires-Dist: typer>=0.12; extra == 'tools'\n",
}


@pytest.mark.parametrize(
    ("changes", "tag", "problem"),
    [
        ({}, "manylinux_2_28_x86_64", ""),
        ({"softnpu/tests/test_it.py": b""}, "manylinux_2_28_x86_64", "expected no tests"),
        ({"softnpu/plugin/py.typed": None}, "manylinux_2_28_x86_64", "no py.typed"),
        ({"softnpu/driver/native/lib/libze_softnpu.so": None}, "linux_x86_64", "expected the native driver"),
        (
            {"softnpu/driver/native/lib/libsoftnpu_guard.so": None},
            "linux_x86_64",
            "libsoftnpu_guard.so: missing",
        ),
        ({}, "manylinux_2_17_x86_64", "needs glibc 2.27; expected at most that of manylinux_2_17"),
        ({}, "any", "expected py3-none-manylinux_X_Y"),
        (
            {"softnpu/driver/native/lib/libze_softnpu.so": _LIBRARY + b"\0libstdc++.so.6\0"},
            "manylinux_2_28_x86_64",
            "expected it linked statically",
        ),
        (
            {"softnpu-0.dist-info/METADATA": b"Requires-Dist: ray\n"},
            "manylinux_2_28_x86_64",
            "what daemon, driver and plugin need",
        ),
    ],
)
def test_the_check_of_packages_finds_errors(
    tmp_path: Path, changes: dict[str, bytes | None], tag: str, problem: str
) -> None:
    path = tmp_path / f"softnpu-0-py3-none-{tag}.whl"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        for name, data in {**_WHEEL, **changes}.items():
            if data is not None:
                wheel.writestr(name, data)
    path.write_bytes(content.getvalue())
    done = subprocess.run(
        [sys.executable, _ROOT / "packaging" / "contents.py", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (1 if problem else 0), done.stderr
    assert problem in done.stderr
    assert "softnpu/__init__.py" in done.stdout


def test_the_units_the_image_and_the_programs_use_one_socket() -> None:
    units = {path.name: path.read_text() for path in (_ROOT / "packaging" / "systemd").iterdir()}
    (listens,) = re.findall(r"^ListenSequentialPacket=(.*)$", units["softnpu.socket"], re.MULTILINE)
    assert f"--socket {listens} " in units["softnpu.service"]
    assert listens == "%t/softnpu/softnpu.sock"  # `endpoint.default_socket`
    image = (_ROOT / "Dockerfile").read_text()
    (place,) = re.findall(r"^ENV SOFTNPU_SOCKET=(.*)/npu.sock$", image, re.MULTILINE)
    assert f"VOLUME {place}\n" in image
    assert f"- npu:{place}\n" in (_ROOT / "packaging" / "compose.yaml").read_text()
    json.loads((_ROOT / ".devcontainer" / "devcontainer.json").read_text())


def test_the_action_starts_a_daemon_for_the_next_steps(private_dir: Path, native_dir: dict[str, str]) -> None:
    files = {name: private_dir / name.lower() for name in ("GITHUB_ENV", "GITHUB_OUTPUT")}
    command = private_dir / "softnpu-command" / "softnpu"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m softnpu.tools.cli "$@"\n')
    command.chmod(0o755)
    socket = private_dir / "softnpu" / "npu.sock"
    given = {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(private_dir),
        "PLATFORM": "3720 4000",
        "OPTIONS": "--strict --idle-timeout 60",
        **{name: str(path) for name, path in files.items()},
    }
    subprocess.run(
        [_ROOT / "packaging" / "start_in_workflow"],
        env={**os.environ, **native_dir, **given},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
    with Driver.open(socket, autostart=False) as driver:
        assert [device.info.platform for device in driver.devices] == ["3720", "4000"]
        driver.stop_daemon()
    wait_until(lambda: not endpoint.lock_path(socket).exists())
    lines = files["GITHUB_ENV"].read_text().splitlines()
    assert f"SOFTNPU_SOCKET={socket}" in lines
    assert files["GITHUB_OUTPUT"].read_text() == f"socket={socket}\n"
