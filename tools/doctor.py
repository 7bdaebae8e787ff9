"""`softnpu doctor`: whether programs can find and use the emulated NPU here, and what to do if not."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import typer

from softnpu.tools.shared.console import JsonOption, format_bytes, out, print_json, print_line
from softnpu.tools.shared.daemon_connection import (
    OtherVersionError,
    SilentDaemonError,
    SocketOption,
    connect,
    socket_path,
)
from softnpu.tools.shared.failures import ToolError, debugging, describe, expected
from softnpu.tools.shared.private_daemon import private_daemon

_DESCRIPTORS_OF_MANY: Final = 1024
_LEAST_MEMORY: Final = 1 << 30
_VIEW_S: Final = 120.0
_PROBE_S: Final = 60.0
home_is_missing = False
"""Whether this process was started without a home directory."""
_MARKS: Final = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failed": "[bold red]failed[/]"}


class Finding(NamedTuple):
    """One check: its result, and the next step unless all is well."""

    check: str
    state: Literal["ok", "warning", "failed"]
    found: str
    next_step: str = ""


def doctor(
    socket: SocketOption = None,
    json_output: JsonOption = False,
) -> None:
    """Check whether programs can find and use the emulated NPU here; exit code 1 if something is wrong."""
    socket_file = socket_path(socket)
    findings = []
    for check in _CHECKS:
        for finding in _run_check(check, socket_file):
            findings.append(finding)
            if not json_output:
                _print(finding)
    if json_output:
        print_json({"findings": [finding._asdict() for finding in findings]})
    if any(finding.state == "failed" for finding in findings):
        raise typer.Exit(1)


def _run_check(check: Callable[[Path], Iterator[Finding]], socket_file: Path) -> Iterator[Finding]:
    """Yield the findings of a check; a failing check is a finding too."""
    try:
        yield from check(socket_file)
    except expected() as error:
        yield Finding(check.__name__.strip("_"), "failed", describe(error))
    except Exception as error:  # noqa: BLE001 - it may come from OpenVINO, and the other checks go on
        if debugging():
            traceback.print_exc()
        step = "see where with SOFTNPU_DEBUG=1 softnpu doctor"
        yield Finding(check.__name__.strip("_"), "failed", f"{type(error).__name__}: {describe(error)}", step)


def _print(finding: Finding) -> None:
    out.print(f"{_MARKS[finding.state]} {finding.check}:", end=" ")
    print_line(finding.found)
    if finding.next_step:
        print_line(f"    next: {finding.next_step}")


# ------------------------------------------------------------ checks


def _versions(_: Path) -> Iterator[Finding]:
    from softnpu.plugin.version import plugin_version

    softnpu, openvino = plugin_version().build_number.split("-openvino-", 1)
    yield Finding(
        "versions", "ok", f"softnpu {softnpu}, openvino {openvino}, Python {platform.python_version()}"
    )


def _machine(_: Path) -> Iterator[Finding]:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        yield Finding("machine", "failed", found, "use Linux on x86-64: nothing else is supported")
        return
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        step = "allow a second core: with one, client and device take turns and small models get slower"
        yield Finding("machine", "warning", f"{found}, 1 core", step)
        return
    yield Finding("machine", "ok", f"{found}, {cores} cores")


def _processor(_: Path) -> Iterator[Finding]:
    from softnpu.emulator.common import processor

    limit = f" within {processor.limit()}, which the environment sets" if processor.limit() else ""
    if processor.has_vnni():
        found = f"VNNI{limit}: quantised models are computed in 8 bits"
    else:
        found = f"no VNNI{limit}: quantised models are computed in f32, in up to twice the time"
    yield Finding("processor", "ok", found)


def _limits(_: Path) -> Iterator[Finding]:
    from softnpu.emulator import descriptor_limit

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    how = "(ulimit -Hn, or --ulimit nofile of a container)"
    if hard != resource.RLIM_INFINITY and hard < descriptor_limit.LEAST:
        step = f"raise it to {descriptor_limit.LEAST} at least {how}"
        yield Finding("limits", "failed", f"{hard} descriptors a process", step)
        return
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_OF_MANY:
        step = f"for many programs at once raise it to {_DESCRIPTORS_OF_MANY} {how}"
        yield Finding("limits", "warning", f"{hard} descriptors a process", step)
        return
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        step = "lift it (ulimit -v unlimited): weights are mapped, which counts though they are shared"
        yield Finding("limits", "warning", f"address space limited to {format_bytes(space)}", step)
        return
    yield Finding("limits", "ok", f"{_count(hard)} descriptors a process, no limit of address space")


def _memory(_: Path) -> Iterator[Finding]:
    """Check device memory, which is in memory files: the size of /dev/shm is irrelevant."""
    from softnpu.emulator.common import linux
    from softnpu.emulator.platforms import usable_memory

    fd = linux.memfd("doctor")
    try:
        os.posix_fallocate(fd, 0, 1 << 20)
    finally:
        os.close(fd)
    usable = usable_memory()
    found = f"{format_bytes(usable)} for memory files (the size of /dev/shm does not matter)"
    if usable < _LEAST_MEMORY:
        yield Finding("shared memory", "warning", found, "give the machine or the container more memory")
        return
    yield Finding("shared memory", "ok", found)


def _permissions(socket_file: Path) -> Iterator[Finding]:
    from softnpu.driver.cache_options import cache_options_from_environment

    if not os.access(socket_file.parent, os.W_OK | os.X_OK):
        step = "choose another socket with SOFTNPU_SOCKET, in a directory that you can write to"
        yield Finding("permissions", "failed", f"{socket_file.parent} cannot be written to", step)
    else:
        yield Finding("permissions", "ok", f"socket {socket_file}")
    cache = cache_options_from_environment(os.environ)
    if cache is None:
        yield Finding("compiled models", "ok", "not kept: ZE_INTEL_NPU_CACHE_DIR is empty")
        return
    folder = Path(cache.directory)
    known = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
    if not os.access(known, os.W_OK | os.X_OK):
        step = "choose another directory with ZE_INTEL_NPU_CACHE_DIR"
        yield Finding("compiled models", "warning", f"cannot be kept in {folder}", step)
        return
    yield Finding("compiled models", "ok", f"kept in {folder}")


def _home(_: Path) -> Iterator[Finding]:
    if home_is_missing:
        found = f"HOME is not set, and user {os.getuid()} has no entry in /etc/passwd; softnpu takes /"
        step = "set HOME to a directory: other programs cannot import OpenVINO without one"
        yield Finding("home", "warning", found, step)


def _daemon(socket_file: Path) -> Iterator[Finding]:
    from softnpu.emulator.interface import endpoint

    try:
        with connect(socket_file) as driver:
            state = driver.status()
    except (SilentDaemonError, OtherVersionError) as error:
        yield Finding("daemon", "failed", f"{error.object}: {error.found}", error.hint)
        return
    except ToolError:
        yield _first_start(socket_file)
        return
    devices = ", ".join(f"{engine.device.platform} {engine.state}" for engine in state.engines)
    found = f"{state.server}, interface {state.interface}, pid {state.pid}, devices: {devices}"
    broken = [engine for engine in state.engines if engine.state != "ready"]
    if broken:
        yield Finding("daemon", "warning", found, f"read {endpoint.log_path(socket_file)}")
        return
    yield Finding("daemon", "ok", found)


def _first_start(socket_file: Path) -> Finding:
    """Check that a first program can start a daemon. Reject an environment in which none could start."""
    from softnpu.emulator import autostart
    from softnpu.emulator.interface.environment import ENV_AUTOSTART

    if os.environ.get(ENV_AUTOSTART) == "0":
        step = f"start one with 'softnpu daemon', or let programs do so (unset {ENV_AUTOSTART})"
        return Finding("daemon", "warning", f"none at {socket_file}, and {ENV_AUTOSTART}=0", step)
    autostart.settings(str(socket_file)).check()
    return Finding("daemon", "ok", f"none at {socket_file}; the first program starts one")


def _loader(_: Path) -> Iterator[Finding]:
    from softnpu.driver import ZeError, native_library

    try:
        library = native_library.find()
    except ZeError as error:
        info = error.info
        yield Finding("native driver", "failed", f"{info.found}; expected {info.expected}", info.hint)
        return
    yield Finding("native driver", "ok", f"{library.driver}, loader {library.loader}")


def _native_parts(_: Path) -> Iterator[Finding]:
    """Check the optional compiled parts, and name what is missing without them."""
    from softnpu.emulator.common import native_files

    missing = [
        f"no {path}: {effect}"
        for path, effect in (
            (native_files.engine(), "small models run slower"),
            (native_files.submit(), "Python programs submit and wait slower"),
            (native_files.guard(), "memory of other programs is refused"),
        )
        if not path.exists()
    ]
    if missing:
        step = "install softnpu again on a machine with g++, or a wheel of it"
        yield Finding("native parts", "warning", "; ".join(missing), step)
        return
    yield Finding(
        "native parts", "ok", "the parts of engine and Python driver in C++, the guard of foreign memory"
    )


def _device(_: Path) -> Iterator[Finding]:
    """Check that the device computes: a small model on a daemon of our own."""
    from softnpu.plugin import Core
    from softnpu.tools.demo.digits import load_test_set, model_path

    images, labels = load_test_set()
    with private_daemon() as daemon:
        core = Core(daemon.socket)
        try:
            compiled = core.compile_model(model_path(), "NPU", {"NPU_BYPASS_UMD_CACHING": True})
            right = int(compiled(images[:1])[0].argmax()) == labels[0]
            name = core.get_property("NPU", "FULL_DEVICE_NAME")
        finally:
            core.unload_plugin()
    if not right:
        yield Finding(
            "device", "failed", f"{name}: a wrong result", "report this, with the log of the daemon"
        )
        return
    yield Finding("device", "ok", f"{name} computes a model in a daemon of its own")


def _openvino(_: Path) -> Iterator[Finding]:
    """Check what an unmodified program sees, in a process started as by `softnpu run`."""
    from softnpu.driver import ZeError, native_library

    try:
        library = native_library.find()
    except ZeError:
        return
    code = "import openvino as ov; print(*ov.Core().available_devices)"
    with private_daemon() as daemon:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=library.environment(daemon.socket, os.environ),
            capture_output=True,
            text=True,
            timeout=_VIEW_S,
            check=False,
        )
    devices = done.stdout.split()
    if any(device.startswith("NPU") for device in devices):
        yield Finding("OpenVINO", "ok", f"finds {', '.join(devices)}")
        return
    last_line = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    step = "see what it says with OV_NPU_LOG_LEVEL=LOG_TRACE softnpu run -- python -c '...'"
    yield Finding(
        "OpenVINO", "failed", f"finds {', '.join(devices) or 'no device'}, no NPU: {last_line}", step
    )


def _compiler(_: Path) -> Iterator[Finding]:
    """Check which compiler OpenVINO's plugin uses under `softnpu run`."""
    from softnpu.driver import ZeError, native_library, program_environment

    spec = importlib.util.find_spec("openvino")
    folder = Path((spec and spec.origin) or "/").parent / "libs"
    brought = sorted(folder.glob("libopenvino_intel_npu_compiler*.so"))
    try:
        audit = native_library.find().driver.with_name(program_environment.AUDIT_NAME)
    except ZeError:
        return
    choice = os.environ.get(program_environment.ENV_COMPILER) or "auto"
    if choice == "driver" or (choice == "auto" and not brought):
        yield Finding("compiler", "ok", f"the driver's ({choice}); {folder} brings {len(brought)} libraries")
    elif audit.exists():
        found = f"softnpu's, in the plugin ({choice})" + (
            f", in the place of {brought[-1]}" if brought else ""
        )
        yield Finding("compiler", "ok", found)
    else:
        step = "install softnpu again where there is glibc, or use NPU_COMPILER_TYPE=DRIVER"
        yield Finding("compiler", "warning", f"no file {audit}: OpenVINO keeps its own compiler", step)


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _f16(_: Path) -> Iterator[Finding]:
    from softnpu.emulator.arithmetic import library
    from softnpu.emulator.interface.result import Refused

    try:
        path = library.folder() / library.name()
        if not path.exists():
            compiler = library.compiler()
            yield Finding("f16", "ok", f"{compiler} builds its extension when a model asks for it first")
            return
        yield Finding("f16", "ok", f"extension {library.find()}")
    except Refused as error:
        yield Finding("f16", "warning", f"refused: {error.info.found}", error.info.hint)


def _walls(_: Path) -> Iterator[Finding]:
    command = [sys.executable, "-P", "-m", "softnpu.emulator.sandbox.probe"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=_PROBE_S)
    told = json.loads(done.stdout)
    missing = ", ".join(told["missing"])
    if told["possible"]:
        found = f"a model that takes over an engine could {', '.join(told['possible'])}; missing: {missing}"
        step = "use a kernel with Landlock and seccomp, and load no models that you do not trust"
        yield Finding("walls", "warning", found, step)
    elif missing:
        yield Finding("walls", "ok", f"engines are sandboxed, without {missing}")
    else:
        found = "engines and compiler workers are sandboxed by seccomp, Landlock and a limit of memory"
        yield Finding("walls", "ok", found)


_CHECKS: Final = (
    _versions,
    _machine,
    _processor,
    _home,
    _limits,
    _memory,
    _permissions,
    _daemon,
    _walls,
    _loader,
    _native_parts,
    _device,
    _openvino,
    _compiler,
    _f16,
)
