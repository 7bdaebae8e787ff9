"""A pytest plugin: `softnpu_device`, an emulated NPU for the tests of other people's programs.

Every worker of pytest-xdist has a daemon of its own. `--softnpu-platform 3720` chooses the platform.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_OPTION = "--softnpu-platform"
_SOCKET = "SOFTNPU_SOCKET"


class Environment(Mapping[str, str]):
    """Variables for another process. Its text has none but ours: pytest prints it when a test fails."""

    # no dictionary: pytest prints every item of one
    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __getitem__(self, name: str) -> str:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __repr__(self) -> str:
        return f"<{len(self)} variables, {_SOCKET}={self[_SOCKET]!r} among them>"


@dataclass(frozen=True)
class SoftnpuDevice:
    """`socket` is that of the daemon; with `environment` a program finds the NPU, as with `softnpu run`."""

    socket: Path
    environment: Environment


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("softnpu").addoption(
        _OPTION,
        action="append",
        metavar="PLATFORM",
        help="platform of the emulated NPU: 3720, 4000 (default) or 5010; repeat for more devices",
    )


@pytest.fixture(scope="session")
def softnpu_device(pytestconfig: pytest.Config) -> Iterator[SoftnpuDevice]:
    """An emulated NPU that lasts for the session: for this process and for all that it starts.

    In this process OpenVINO finds it from now on, unless it has looked for an NPU before.
    """
    from contextlib import ExitStack

    from softnpu.driver import native_library
    from softnpu.tools.failures import describe, expected
    from softnpu.tools.private_daemon import private_daemon

    platforms = pytestconfig.getoption(_OPTION)
    settings = {"devices": tuple(platforms)} if platforms else {}
    with ExitStack() as stack:
        try:
            library = native_library.find()
            daemon = stack.enter_context(private_daemon(**settings))
            environment = Environment(library.environment(daemon.socket, os.environ))
        except expected() as error:
            pytest.fail(f"softnpu_device: {describe(error)}", pytrace=False)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in environment.items():
            if os.environ.get(name) != value:
                patch.setenv(name, value)
        # LD_LIBRARY_PATH is read when a process starts; a library that is loaded already is found by its name
        ctypes.CDLL(str(library.loader), mode=ctypes.RTLD_GLOBAL)
        yield SoftnpuDevice(daemon.socket, environment)
