"""The end of the daemon, the end of the process, and forked children."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.native.conftest import OPENVINO, Run, client
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

PROLOGUE = """
import os, sys, threading, time
from pathlib import Path
from tests.conformance.native_driver import NativeDriver
from tests.conformance.api.structures import *
def start():
    api = NativeDriver(Path(os.environ["SOFTNPU_SOCKET"]))
    driver = api.ze_init_drivers().get()[0]
    device = api.ze_device_get(driver).get()[0]
    return api, driver, device, api.ze_context_create(driver, ContextDesc()).get()
api, driver, device, context = start()
def queue_in(context): return api.ze_command_queue_create(context, device, CommandQueueDesc()).get()
def list_in(context): return api.ze_command_list_create(context, device, CommandListDesc()).get()
"""

WAITERS = (
    PROLOGUE
    + """
pool = api.ze_event_pool_create(context, EventPoolDesc(2), 0, None).get()
gate, done = (api.ze_event_create(pool, EventDesc(index)).get() for index in range(2))
queue, commands = queue_in(context), list_in(context)
api.ze_command_list_append_wait_on_events(commands, 1, [gate])
api.ze_command_list_append_signal_event(commands, done)
api.ze_command_list_close(commands)
fence = api.ze_fence_create(queue, FenceDesc()).get()
api.ze_command_queue_execute_command_lists(queue, 1, [commands], fence)
immediate = api.ze_command_list_create_immediate(context, device, CommandQueueDesc()).get()
api.ze_command_list_append_wait_on_events(immediate, 1, [gate])
forever = 2**64 - 1
waits = {
    "fence": lambda: api.ze_fence_host_synchronize(fence, forever),
    "queue": lambda: api.ze_command_queue_synchronize(queue, forever),
    "event": lambda: api.ze_event_host_synchronize(done, forever),
    "immediate": lambda: api.ze_command_list_host_synchronize(immediate, forever),
}
ended = {}
def wait(name):
    ended[name] = waits[name]().name
threads = [threading.Thread(target=wait, args=(name,)) for name in waits]
for thread in threads: thread.start()
print("waiting", flush=True)
for thread in threads: thread.join(20)
for name in waits: print(name, ended[name])
print(api.ze_mem_alloc_host(context, HostMemDesc(), 64).result.name)
print(api.ze_fence_destroy(fence).name, api.ze_command_queue_destroy(queue).name)
print(api.ze_context_destroy(context).name)
"""
)


def test_every_wait_ends_when_the_daemon_is_killed(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon(tdr_ms=60000)
    with client(WAITERS, surroundings, "waiting") as process:
        daemon.kill()
        output, _ = process.communicate(timeout=30)
    names = ("fence", "queue", "event", "immediate")
    assert output.splitlines() == [
        *(f"{name} ERROR_DEVICE_LOST" for name in names),
        "ERROR_DEVICE_LOST",
        "SUCCESS SUCCESS",
        "SUCCESS",
    ]


INFERRING = """
compiled, image = core.compile_model(digits(), "NPU", {"PERFORMANCE_HINT": "THROUGHPUT"}), images()
queue = ov.AsyncInferQueue(compiled, 8)  # threads of OpenVINO wait for each of them
queue.start_async([image])
queue.wait_all()
print("inferring", flush=True)
try:
    while True: queue.start_async([image])
except RuntimeError as failure:
    print("DEVICE_LOST" in str(failure), flush=True)
"""


def test_openvino_gets_an_error_in_mid_inference_and_exits_cleanly(
    start_daemon: StartDaemon, surroundings: dict[str, str], digits: Path
) -> None:
    daemon = start_daemon()
    with client(OPENVINO + INFERRING, surroundings, "inferring", str(digits)) as process:
        daemon.kill()
        said, _ = process.communicate(timeout=60)
    assert said == "True\n"


def test_new_session_after_the_daemon_was_replaced(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon()
    code = (
        PROLOGUE
        + """
memory = api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
api.write(memory, b"before")
queue, commands = queue_in(context), list_in(context)
pool = api.ze_event_pool_create(context, EventPoolDesc(2), 0, None).get()
event = api.ze_event_create(pool, EventDesc(0)).get()
api.ze_command_list_append_memory_fill(commands, memory, b"\\1", 64)
api.ze_command_list_close(commands)
def run(commands):
    submitted = api.ze_command_queue_execute_command_lists(queue, 1, [commands])
    print(submitted.name, api.ze_command_queue_synchronize(queue, 10**10).name)
run(commands)
print("ready", flush=True)
sys.stdin.readline()
fresh = api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
assert api.ze_init_drivers().get()[0] == driver and api.ze_device_get(driver).get()[0] == device
# what was made before stays lost, its memory readable
again = list_in(context)
print(api.ze_command_list_append_memory_fill(again, memory, b"\\2", 64).name, api.read(memory, 2))
print(api.ze_command_list_append_signal_event(again, event).name)
print(api.ze_command_list_append_wait_on_events(again, 1, [event]).name)
run(commands)
# what is made from then on works, on the queue too
api.ze_command_list_append_memory_fill(again, fresh, b"\\3", 64)
api.ze_command_list_close(again)
run(again)
print(api.read(fresh, 2), api.ze_mem_free(context, memory).name, api.ze_mem_free(context, fresh).name)
print(api.ze_context_destroy(context).name, api.ze_event_destroy(event).name)
"""
    )
    with client(code, surroundings, "SUCCESS SUCCESS") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        daemon.kill()
        start_daemon()
        said, _ = process.communicate("go\n", timeout=30)
    lost = "ERROR_DEVICE_LOST"
    assert said.splitlines() == [
        "ERROR_OUT_OF_DEVICE_MEMORY b'\\x01\\x01'",
        lost,
        lost,
        f"{lost} SUCCESS",
        "SUCCESS SUCCESS",
        "b'\\x03\\x03' SUCCESS SUCCESS",
        "SUCCESS ERROR_INVALID_NULL_HANDLE",
    ]


RECOMPILING = """
compiled, image = core.compile_model(digits(), "NPU"), images()
request = compiled.create_infer_request()
expected = request.infer([image])[0].copy()
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "dropped": del compiled, request
again = core.compile_model(digits(), "NPU")
same([again([image])[0]], [expected])
if sys.argv[2] == "kept":
    for use in (lambda: request.infer([image]), lambda: compiled([image])):
        try: use()
        except RuntimeError as failure: assert "DEVICE_LOST" in str(failure), failure
        else: raise AssertionError("inferred")
    del compiled, request
same([again.create_infer_request().infer([image])[0]], [expected])
print("same", flush=True)
"""


@pytest.mark.parametrize("old", ["kept", "dropped"])
def test_openvino_compiles_again_with_the_next_daemon(
    start_daemon: StartDaemon, surroundings: dict[str, str], digits: Path, old: str
) -> None:
    daemon = start_daemon()
    with client(OPENVINO + RECOMPILING, surroundings, "ready", str(digits), old) as process:
        daemon.kill()
        start_daemon()
        said, _ = process.communicate("go\n", timeout=60)
    assert said == "same\n"
    assert process.returncode == 0


FORK = (
    PROLOGUE
    + """
memory = api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
queue, commands = queue_in(context), list_in(context)
fence = api.ze_fence_create(queue, FenceDesc()).get()
child = os.fork()
if child == 0:
    # the parent's objects are not the child's
    results = [
        api.ze_mem_alloc_host(context, HostMemDesc(), 64).result,
        api.ze_mem_free(context, memory),
        api.ze_fence_query_status(fence),
        api.ze_command_queue_synchronize(queue, 0),
        api.ze_driver_get_api_version(driver).result,
    ]
    print({result.name for result in results}, flush=True)
    api2, driver2, device, context2 = start()
    target, source = (api.ze_mem_alloc_host(context2, HostMemDesc(), 8).get() for _ in range(2))
    api.write(source, b"a child!")
    queue, commands = queue_in(context2), list_in(context2)
    api.ze_command_list_append_memory_copy(commands, target, source, 8)
    api.ze_command_list_close(commands)
    api.ze_command_queue_execute_command_lists(queue, 1, [commands])
    print(api.ze_command_queue_synchronize(queue, 10**10).name, api.read(target, 8), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ends = api.ze_mem_free(context, memory), api.ze_fence_destroy(fence), api.ze_context_destroy(context)
print(*(result.name for result in ends))
"""
)


def test_forked_child_gets_a_clear_error_and_then_its_own_session(
    start_daemon: StartDaemon, run: Run
) -> None:
    start_daemon()
    lines = run(FORK).stdout.splitlines()
    assert lines == ["{'ERROR_UNINITIALIZED'}", "SUCCESS b'a child!'", "0", "SUCCESS SUCCESS SUCCESS"]


FORKED_OPENVINO = """
core.compile_model(digits(), "NPU")
child = os.fork()
if child == 0:
    try:
        ov.Core().compile_model(digits(), "NPU")
    except RuntimeError:
        os._exit(0)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_child_of_an_openvino_program_is_told_why_it_has_no_npu(
    shared_daemon: Daemon, run: Run, digits: Path
) -> None:
    environment = {"SOFTNPU_SOCKET": str(shared_daemon.socket)}
    told = run(OPENVINO + FORKED_OPENVINO, str(digits), environment=environment)
    assert told.stdout == "0\n"
    (line,) = [line for line in told.stderr.splitlines() if line.startswith("softnpu: ")]
    assert "forked" in line
    assert "spawn" in line


ORPHAN = (
    PROLOGUE
    + """
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
print("left", flush=True)
os._exit(0)
"""
)


def test_daemon_notices_the_parents_end_while_its_child_lives_on(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon()
    with client(ORPHAN, surroundings, "left") as parent:
        assert parent.wait(timeout=30) == 0
        wait_until(lambda: daemon.status().session_count <= 1, 1.5, what="the end of the session")
        parent.communicate(timeout=30)  # closes the input: the child ends, and with it the output


AT_EXIT = (
    PROLOGUE
    + """
import ctypes
# everything is alive when the process ends, and the library is closed before its last use
memory = api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
queue = queue_in(context)
import atexit
atexit.register(lambda: print(api.ze_mem_free(context, memory).name, flush=True))
from tests.conformance.native_driver.library import Library
dlclose = ctypes.CDLL(None).dlclose
dlclose.argtypes = [ctypes.c_void_p]
dlclose(Library.get()._handle)
print("end", flush=True)
"""
)


def test_process_may_exit_with_everything_alive_and_the_library_closed(
    start_daemon: StartDaemon, run: Run
) -> None:
    daemon = start_daemon()
    assert run(AT_EXIT).stdout.splitlines() == ["end", "SUCCESS"]
    assert daemon.alive


UNLOCKED = (
    PROLOGUE
    + """
pool = api.ze_event_pool_create(context, EventPoolDesc(2), 0, None).get()
gate, done = (api.ze_event_create(pool, EventDesc(index)).get() for index in range(2))
queue, commands, more = queue_in(context), list_in(context), list_in(context)
api.ze_command_list_append_wait_on_events(commands, 1, [gate])
api.ze_command_list_append_signal_event(commands, done)
api.ze_command_list_append_barrier(more)
for each in (commands, more): api.ze_command_list_close(each)
fence = api.ze_fence_create(queue, FenceDesc()).get()
api.ze_command_queue_execute_command_lists(queue, 1, [commands], fence)
forever, ended = 2**64 - 1, []
waits = (
    lambda: api.ze_command_queue_synchronize(queue, forever),
    lambda: api.ze_fence_host_synchronize(fence, forever),
    lambda: api.ze_event_host_synchronize(done, forever),
)
threads = [threading.Thread(target=lambda wait=wait: ended.append(wait().name)) for wait in waits]
for thread in threads: thread.start()
def sleeps(thread):
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(") ", 1)[1][0] == "S"
while not all(sleeps(thread) for thread in threads): time.sleep(0.01)
def use():
    # all of it while others wait for the same queue, fence and event
    other = api.ze_fence_create(queue, FenceDesc()).get()
    memory = api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
    api.ze_command_queue_execute_command_lists(queue, 1, [more], other)
    print(api.ze_fence_query_status(fence).name, api.ze_event_query_status(done).name)
    api.ze_mem_free(context, memory)
    api.ze_event_host_signal(gate)
    print(api.ze_fence_host_synchronize(other, 10**10).name, api.ze_fence_destroy(other).name)
user = threading.Thread(target=use, daemon=True)
user.start()
user.join(20)
if user.is_alive():
    print("blocked", flush=True)
    os._exit(1)
for thread in threads: thread.join(20)
print(ended)
"""
)


def test_nothing_is_locked_while_a_thread_waits_for_the_device(start_daemon: StartDaemon, run: Run) -> None:
    start_daemon(tdr_ms=60000)
    assert run(UNLOCKED).stdout.splitlines() == [
        "NOT_READY NOT_READY",
        "SUCCESS SUCCESS",
        "['SUCCESS', 'SUCCESS', 'SUCCESS']",
    ]


CLOSED = (
    PROLOGUE
    + """
import os
memory = api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
queue, commands = queue_in(context), list_in(context)
api.ze_command_list_append_memory_fill(commands, memory, b"\\1", 64)
api.ze_command_list_close(commands)
def submit(): return api.ze_command_queue_execute_command_lists(queue, 1, [commands]).name
print(submit(), api.ze_command_queue_synchronize(queue, 10**10).name)
folder = Path(sys.argv[1])
mine = set()
def take(kind):
    # as a program does that becomes a daemon: everything is closed, and then come files of its own
    os.closerange(3, 256)
    while len(mine) < 12:
        if kind == "file": mine.add(os.open(folder / f"{len(mine)}", os.O_CREAT | os.O_RDWR))
        else: mine.add(os.eventfd(0, os.EFD_NONBLOCK))
kind = sys.argv[2]
take(kind)
end = time.monotonic() + 10
# an engine that is awake needs no doorbell: then nothing is used, and the work is done
while submit() == "SUCCESS" and time.monotonic() < end: time.sleep(0.005)
results = {submit() for _ in range(3)}
results |= {
    api.ze_command_queue_synchronize(queue, 10**10).name,
    api.ze_mem_alloc_host(context, HostMemDesc(), 1 << 22).result.name,
}
print(results)
print(api.ze_driver_get_last_error_description(driver).value)
if os.fork() == 0:
    # a child closes what is the driver's, and nothing else
    os._exit(0 if all(os.fstat(fd) for fd in mine) else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
api.ze_command_queue_destroy(queue)
api.ze_context_destroy(context)
# the driver begins again beside them
api, driver, device, context = start()
fresh = api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
queue, commands = queue_in(context), list_in(context)
api.ze_command_list_append_memory_fill(commands, fresh, b"\\2", 64)
api.ze_command_list_close(commands)
print(submit(), api.ze_command_queue_synchronize(queue, 10**10).name, api.read(fresh, 1))
def untouched(fd):
    if kind == "file": return os.fstat(fd).st_size == 0
    try: return os.eventfd_read(fd) == 0
    except BlockingIOError: return True
print(all(untouched(fd) for fd in mine))
"""
)


@pytest.mark.parametrize("kind", ["file", "eventfd"])
def test_descriptors_closed_by_the_program_are_not_used(
    start_daemon: StartDaemon, run: Run, tmp_path: Path, kind: str
) -> None:
    start_daemon()
    lines = run(CLOSED, str(tmp_path), kind).stdout.splitlines()
    assert lines[0] == "SUCCESS SUCCESS"
    assert lines[1] == "{'ERROR_DEVICE_LOST'}"
    assert "this program has closed its" in lines[2]
    assert lines[3:] == ["0", "SUCCESS SUCCESS b'\\x02'", "True"]
