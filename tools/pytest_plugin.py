"""A pytest plugin: an emulated NPU for the tests of other people's programs. docs/pytest.md describes it.

`softnpu_device` lasts for a session, `softnpu_module_device` for a module,
`softnpu_test_device` for a test.
`@pytest.mark.npu(platform="3720", faults="hang:after=3")` configures a device; with `check=True` a test fails
if its programs use the NPU in a wrong way. Every pytest-xdist worker has its own daemons.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

_OPTION = "--softnpu-platform"
_MISSING = "--softnpu-missing"
_SOCKET = "SOFTNPU_SOCKET"
_MARK = "npu"
_living: list[Path] = []
"""Sockets of this process's devices, newest last."""
_SESSION, _MODULE, _TEST = _FIXTURES = ("softnpu_device", "softnpu_module_device", "softnpu_test_device")


class SoftnpuWarning(pytest.PytestWarning):
    """A device is invisible to OpenVINO in this process."""


class Environment(Mapping[str, str]):
    """Variables for another process. Its text shows only ours: pytest prints it when a test fails."""

    # not a dict: pytest prints every item of one
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
    """`socket` is the daemon's; with `environment` a program finds the NPU, as with `softnpu run`."""

    socket: Path
    environment: Environment
    _report: Callable[[], str] | None = field(default=None, repr=False)

    def fault(self, kind: str, **options: Any) -> AbstractContextManager[int]:
        """Inject a fault for the duration of a block; options as of `softnpu.driver.faults.inject`."""
        from softnpu.driver import faults

        return faults.injected(kind, socket=self.socket, **options)


@dataclass(frozen=True)
class _Wanted:
    """The settings requested by a mark."""

    platforms: tuple[str, ...] = ()
    faults: str = ""
    strict: bool = False
    check: bool = False

    def settings(self) -> dict[str, Any]:
        """Return them as `DaemonSettings` has them."""
        devices = {"devices": self.platforms} if self.platforms else {}
        return {**devices, "inject": self.faults, "strict": self.strict}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("softnpu")
    group.addoption(
        _OPTION,
        action="append",
        metavar="PLATFORM",
        help="platform of the emulated NPU: 3720, 4000 [default], 5010, 5020, codename; repeat for more",
    )
    group.addoption(
        _MISSING,
        choices=("fail", "skip"),
        default="fail",
        help="what happens to tests where the native driver is not installed: fail (default) or skip",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark. Tests have daemons of their own, so the plugin begins none when it is imported."""
    from softnpu.driver import starter

    starter.may_begin_early = False
    config.addinivalue_line(
        "markers",
        f"{_MARK}(platform=None, faults=None, strict=False, check=False): an emulated NPU of this platform "
        "(several: a list), with these faults (as SOFTNPU_INJECT has them), that refuses what silicon "
        "refuses, and fails a test with what 'softnpu check' finds",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a marked test a device, unless it requests one by name."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is not None and item.get_closest_marker(_MARK) and not set(_FIXTURES) & set(names):
        names.insert(0, _TEST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reject a mark that the test's device does not follow."""
    node, mark = next(item.iter_markers_with_node(_MARK), (None, None))
    names = getattr(item, "fixturenames", ())
    lasting = next((name for name in (_SESSION, _MODULE) if name in names and _TEST not in names), None)
    if node is None or mark is None or lasting is None or _read(mark) == _Wanted():
        return
    if lasting == _MODULE and not isinstance(node, pytest.Module):
        expected = f"pytestmark of the module, or {_TEST}"
    elif lasting == _SESSION:
        expected = f"{_MODULE} or {_TEST}"
    else:
        return
    text = f"{lasting}: it lasts longer than the mark {_MARK} of {node.name}; use {expected}"
    pytest.fail(text, pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that has passed, and whose checked programs have used the device in a wrong way."""
    arguments = getattr(item, "funcargs", {})
    for device in (arguments.get(name) for name in _FIXTURES):
        if isinstance(device, SoftnpuDevice) and device._report is not None and (text := device._report()):
            pytest.fail(text, pytrace=False)


@pytest.fixture(scope="session")
def softnpu_device(pytestconfig: pytest.Config) -> Iterator[SoftnpuDevice]:
    """An emulated NPU that lasts for the session: for this process and for all that it starts.

    In this process OpenVINO finds it from now on, unless it has looked for an NPU before.
    """
    yield from _device(pytestconfig, _SESSION, _Wanted())


@pytest.fixture(scope="module")
def softnpu_module_device(request: pytest.FixtureRequest) -> Iterator[SoftnpuDevice]:
    """An emulated NPU that lasts for the module, as its `pytestmark` says."""
    mark = request.node.get_closest_marker(_MARK)
    yield from _device(request.config, _MODULE, _Wanted() if mark is None else _read(mark))


@pytest.fixture
def softnpu_test_device(request: pytest.FixtureRequest) -> Iterator[SoftnpuDevice]:
    """An emulated NPU of one test, as the closest mark says."""
    mark = request.node.get_closest_marker(_MARK)
    yield from _device(request.config, _TEST, _Wanted() if mark is None else _read(mark))


def _read(mark: pytest.Mark) -> _Wanted:
    """Read the mark's settings; fail the test with one line for unknown ones."""

    def read(
        platform: str | Sequence[str] | None = None,
        faults: str | Sequence[str] | None = None,
        strict: bool = False,
        check: bool = False,
    ) -> _Wanted:
        return _Wanted(_texts(platform), ", ".join(_texts(faults)), bool(strict), bool(check))

    try:
        return read(*mark.args, **mark.kwargs)
    except TypeError as error:
        reason = str(error).replace("_read.<locals>.read()", "it")
        text = f"mark {_MARK}: {reason}; expected platform=, faults=, strict=, check="
        raise pytest.fail.Exception(text, pytrace=False) from None


def _texts(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one or several texts as a tuple."""
    texts = (given,) if isinstance(given, str) else given or ()
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{given!r} is neither a text nor a list of texts")
    return tuple(texts)


def _device(config: pytest.Config, fixture: str, wanted: _Wanted) -> Iterator[SoftnpuDevice]:
    """Yield the requested device with its own daemon, and the variables by which programs find it."""
    from softnpu.driver import ZeError, ZeResult, native_library
    from softnpu.tools.shared.failures import describe, expected
    from softnpu.tools.shared.private_daemon import private_daemon

    platforms = config.getoption(_OPTION)
    if platforms and not wanted.platforms:
        wanted = replace(wanted, platforms=tuple(platforms))
    report: Callable[[], str] | None = None
    text = ""
    with ExitStack() as stack:
        try:
            library = native_library.find()
            start: Callable[..., Any] = private_daemon
            if wanted.check:
                start, report = _checked(stack)
            daemon = stack.enter_context(start(**wanted.settings()))
            environment = Environment(library.environment(daemon.socket, daemon.environment(os.environ)))
        except expected() as error:
            reason = f"{fixture}: {describe(error)}"
            missing = isinstance(error, ZeError) and error.result == ZeResult.ERROR_DEPENDENCY_UNAVAILABLE
            if missing and config.getoption(_MISSING) == "skip":
                raise pytest.skip.Exception(reason) from None
            raise pytest.fail.Exception(reason, pytrace=False) from None
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in environment.items():
            if os.environ.get(name) != value:
                patch.setenv(name, value)
        # LD_LIBRARY_PATH is read at process start; a library already loaded is found by its name
        ctypes.CDLL(str(library.loader), mode=ctypes.RTLD_GLOBAL)
        if any(_is_used_here(socket) for socket in _living):
            text = (
                f"{fixture}: this process has a session with a device that lasts longer; unmodified "
                "OpenVINO stays with that one here. Use the same fixture in all tests that use OpenVINO in "
                "this process"
            )
            warnings.warn(SoftnpuWarning(text), stacklevel=1)
        _living.append(daemon.socket)
        stack.callback(_living.remove, daemon.socket)
        yield SoftnpuDevice(daemon.socket, environment, report)
        text = "" if report is None else report()
    if text:  # of a test that has failed anyhow, or of other fixtures
        raise pytest.fail.Exception(text, pytrace=False)


def _checked(stack: ExitStack) -> tuple[Callable[..., Any], Callable[[], str]]:
    """Return what starts a daemon whose programs are checked, and what reports on them."""
    from softnpu.tools.check.checked_daemon import checked_daemon
    from softnpu.tools.check.fresh import Fresh

    notes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-check-")))

    def end() -> None:
        if (noted := sys.modules.get("softnpu.driver.check_notes")) is not None:
            noted.end(notes)

    stack.callback(end)
    return lambda **settings: checked_daemon(notes, **settings), Fresh(notes).report


def _is_used_here(socket: Path) -> bool:
    """Return whether this process has a session with that daemon, besides our monitor."""
    from softnpu.driver import Driver

    with Driver.open(socket, autostart=False, role="monitor") as driver:
        return any(session.pid == os.getpid() for session in driver.status().sessions)
