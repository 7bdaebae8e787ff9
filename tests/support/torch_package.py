"""torch for tests (not a dependency of ours): a CPU build, fetched once and kept beside the models.

A plain `pip install torch` brings gigabytes of CUDA. So the package index is queried first, and only a
CPU build is installed; without one, tests that need it are skipped, with instructions.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from softnpu.tools.models.fetch import directory

REQUIREMENT = "torch==2.13.0"
_CPU_BUILD = "+cpu"
_ASK_S = 240.0
_INSTALL_S = 420.0
_HAS_TORCH = "import torch; torch.ones(1)"


class NoTorch(Exception):
    """The reason that torch is unavailable for tests."""


def torch_path() -> list[str]:
    """Return the path entries that make torch importable: none where it is installed.

    Raise `NoTorch`.
    """
    if importlib.util.find_spec("torch") is not None:
        return []
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = directory() / f"{REQUIREMENT.replace('==', '-')}-python{version}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # concurrent workers: one installs
        if not home.is_dir():
            _install(home)
    return [str(home)]


def _install(home: Path) -> None:
    found = _cpu_build()
    work = home.with_name(f".{home.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    try:
        _pip(["install", "--quiet", "--target", str(work), f"torch=={found}"], _INSTALL_S)
        if not _runs(_HAS_TORCH, [str(work)]):  # a second of CPU time: not each time that it is used
            raise NoTorch(f"{REQUIREMENT} cannot be imported")
        work.rename(home)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _cpu_build() -> str:
    """Return the version of the CPU build that pip would install."""
    answer = _pip(
        ["install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-", REQUIREMENT],
        _ASK_S,
    )
    version: str = json.loads(answer)["install"][0]["metadata"]["version"]
    if not version.endswith(_CPU_BUILD):
        raise NoTorch(
            f"pip would install torch {version}, which is no CPU build and brings CUDA; to run these tests"
            " install a CPU build of torch beside pytest"
        )
    return version


def _pip(arguments: Sequence[str], seconds: float) -> str:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise NoTorch(f"pip {arguments[0]} did not end within {seconds:g} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NoTorch(f"{REQUIREMENT} cannot be fetched: {lines[-1] if lines else 'pip failed'}")
    return done.stdout


def _runs(program: str, path: Sequence[str]) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", program], env=with_path(path), capture_output=True, timeout=_ASK_S, check=False
    )
    return done.returncode == 0


def with_path(path: Sequence[str]) -> dict[str, str]:
    """Return this process's environment with further import paths."""
    whole = [*path, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(whole)} if path else dict(os.environ)
