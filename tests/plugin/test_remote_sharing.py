"""Remote tensors in several processes: one memory, no copy, and any process may end."""

from __future__ import annotations

import os

import openvino as ov
import pytest

from softnpu.plugin import Core
from tests.conftest import RunPython, StartPython
from tests.plugin.remote_worker import doubler
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

_OTHER = """
    import openvino as ov
    from softnpu.plugin import Core
    from tests.plugin.remote_worker import double_in_place
    def adopt(context, pid, fd):
        fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        tensor = context.create_tensor(ov.Type.f32, [4], {"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": fd})
        os.close(fd)
        return tensor
"""
_MULTIPROCESSING = """
    import multiprocessing
    import openvino as ov
    from softnpu.plugin import Core
    from tests.plugin import remote_worker
    processes = multiprocessing.get_context(given["method"])
    context = Core(given["socket"]).get_default_context("NPU")
    source, target = (context.create_tensor(ov.Type.f32, [4]) for _ in range(2))
    source.data[:] = [1, 2, 3, 4]
"""
_METHODS = ("spawn", "forkserver")
_DEADLINE_S = 120.0
"""For the first message of a process that must first load OpenVINO, on a possibly busy machine."""


# ------------------------------------------------------------ by descriptor


def test_two_processes_work_on_one_memory_by_its_descriptor(core: Core, start_python: StartPython) -> None:
    context = core.get_default_context("NPU")
    source, target = (context.create_tensor(ov.Type.f32, [4]) for _ in range(2))
    source.data[:] = [1, 2, 3, 4]
    descriptors = [tensor.export() for tensor in (source, target)]
    other = start_python(
        _OTHER
        + """
    context = Core(given["socket"]).get_default_context("NPU")
    tensors = [adopt(context, given["pid"], fd) for fd in given["fds"]]
    say(double_in_place(given["socket"], *tensors))
    hear()
    tensors[0].data[:] = 9
    Core(given["socket"]).unload_plugin()
    say("unloaded")
    """,
        socket=str(core.driver._connection.name),
        pid=os.getpid(),
        fds=descriptors,
    )
    assert other.hear(_DEADLINE_S) == 0
    for descriptor in descriptors:
        os.close(descriptor)
    assert target.data.tolist() == [2, 4, 6, 8]
    other.tell()
    assert other.hear() == "unloaded"
    assert source.data.tolist() == [9] * 4
    other.finish()
    compiled = core.compile_model(doubler(), "NPU")
    assert compiled([source])["y"].tolist() == [18] * 4, "the end of the other session changes nothing here"


# ------------------------------------------------------------ through multiprocessing


@pytest.mark.parametrize("method", _METHODS)
def test_tensors_are_arguments_of_a_process(daemon: Daemon, run_python: RunPython, method: str) -> None:
    found = run_python(
        _MULTIPROCESSING
        + """
    answers = processes.Queue()
    worker = processes.Process(target=remote_worker.run_once, args=(given["socket"], source, target, answers))
    worker.start()
    staged = answers.get(timeout=60)
    worker.join(60)
    say([staged, target.data.tolist(), worker.exitcode])
    """,
        socket=str(daemon.socket),
        method=method,
        deadline_s=_DEADLINE_S,
    )
    assert found == [0, [2, 4, 6, 8], 0]


def test_a_received_tensor_can_be_sent_on(daemon: Daemon, run_python: RunPython) -> None:
    found = run_python(
        _MULTIPROCESSING
        + """
    inbox, outbox = processes.Queue(), processes.Queue()
    worker = processes.Process(target=remote_worker.send_back, args=(inbox, outbox))
    worker.start()
    inbox.put(source)
    back = outbox.get(timeout=60)
    back.data[0] += 10
    inbox.put(None)
    worker.join(60)
    say([source.data.tolist(), str(back.get_params()["MEM_TYPE"]), back.get_device_name(), worker.exitcode])
    """,
        socket=str(daemon.socket),
        method="spawn",
        deadline_s=_DEADLINE_S,
    )
    assert found == [[12, 3, 4, 5], "SHARED_BUF", "NPU", 0]


def test_a_forked_child_is_told_how_to_get_the_tensor(daemon: Daemon, run_python: RunPython) -> None:
    message = run_python(
        _MULTIPROCESSING
        + """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            source.export()
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    say(os.read(reader, 4096).decode())
    """,
        socket=str(daemon.socket),
        method="fork",
        deadline_s=_DEADLINE_S,
    )
    assert "remote tensor f32[4] on NPU, export: made by process" in message
    assert "used in its forked child" in message
    assert "Start the process with the method 'spawn'" in message


# ------------------------------------------------------------ lifetime


def test_the_memory_outlives_the_process_that_made_it(
    daemon: Daemon, core: Core, start_python: StartPython
) -> None:
    maker = start_python(
        _OTHER
        + """
    tensor = Core(given["socket"]).get_default_context("NPU").create_tensor(ov.Type.f32, [4])
    tensor.data[:] = [1, 2, 3, 4]
    say([os.getpid(), tensor.export()])
    hear()
    """,
        socket=str(daemon.socket),
    )
    pid, number = maker.hear(_DEADLINE_S)
    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    context = core.get_default_context("NPU")
    tensor = context.create_tensor(ov.Type.f32, [4], {"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": descriptor})
    os.close(descriptor)
    maker.kill()
    wait_until(lambda: len(daemon.status().sessions) == 1, what="the end of the maker's session")
    compiled = core.compile_model(doubler(), "NPU")
    assert compiled({"x": tensor})["y"].tolist() == [2, 4, 6, 8]
    assert compiled.staged_bytes == 0
    assert daemon.memory_used() >= tensor.byte_size


def test_memory_of_killed_processes_is_released_with_the_last_user(
    daemon: Daemon, core: Core, start_python: StartPython
) -> None:
    tensor = core.get_default_context("NPU").create_tensor(ov.Type.u8, [1 << 20])
    descriptor = tensor.export()
    users = [
        start_python(
            """
    import openvino as ov
    from softnpu.plugin import Core
    fd = os.open(f"/proc/{given['pid']}/fd/{given['fd']}", os.O_RDWR)
    properties = {"MEM_TYPE": "SHARED_BUF", "MEM_HANDLE": fd}
    tensor = Core(given["socket"]).get_default_context("NPU").create_tensor(ov.Type.u8, [1 << 20], properties)
    os.close(fd)
    say("mapped")
    hear()
    """,
            socket=str(daemon.socket),
            pid=os.getpid(),
            fd=descriptor,
        )
        for _ in range(2)
    ]
    assert [user.hear(_DEADLINE_S) for user in users] == ["mapped"] * 2
    os.close(descriptor)
    engine = daemon.engine().engine_pid
    users[0].kill()
    core.unload_plugin()
    del tensor
    wait_until(lambda: daemon.memory_used() == 1 << 20, what="the memory of two users given back")
    wait_until(lambda: _mapped(engine) == 1 << 20, what="the engine to unmap that of two users")
    users[1].kill()
    wait_until(lambda: daemon.memory_used() == 0, what="the memory of the last user given back")
    wait_until(lambda: _mapped(engine) == 0, what="the engine to unmap it")


def _mapped(pid: int) -> int:
    """Return the bytes of device memory that a process maps, without control memory, by segment size."""
    total = 0
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if "memfd:" in line and "memory" in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                total += end - start if end - start == 1 << 20 else 0
    return total
