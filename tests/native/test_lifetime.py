"""Ends: of the daemon, of the process, of a forked child's illusions."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.conftest import StartDaemon
from tests.native.conftest import Run
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
    result = waits[name]()
    ended[name] = time.monotonic(), result.name
threads = [threading.Thread(target=wait, args=(name,)) for name in waits]
for thread in threads: thread.start()
print("waiting", flush=True)
killed = float(sys.stdin.readline())
for thread in threads: thread.join(10)
for name in waits:
    at, result = ended[name]
    print(name, result, round((at - killed) * 1000))
print(api.ze_mem_alloc_host(context, HostMemDesc(), 64).result.name)
print(api.ze_fence_destroy(fence).name, api.ze_command_queue_destroy(queue).name)
print(api.ze_context_destroy(context).name)
"""
)


def client_of(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A program that one talks to while it runs."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_every_wait_ends_when_the_daemon_is_killed(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon(tdr_ms=60000)
    client = client_of(WAITERS, surroundings)
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "waiting\n"
        time.sleep(0.2)  # all of them sleep by now; earlier would be as good
        at = time.monotonic()
        daemon.kill()
        said, _ = client.communicate(f"{at}\n", timeout=30)
    finally:
        client.kill()
    lines = [line.split() for line in said.splitlines()]
    for name, result, spent in lines[:4]:
        assert result == "ERROR_DEVICE_LOST", name
        assert int(spent) < 100, name
    assert lines[4:] == [["ERROR_DEVICE_LOST"], ["SUCCESS", "SUCCESS"], ["SUCCESS"]]
    assert client.returncode == 0


def test_new_session_after_the_daemon_was_replaced(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon()
    code = (
        PROLOGUE
        + """
print("ready", flush=True)
sys.stdin.readline()
again = api.ze_init_drivers().get()[0]
assert again != driver
device = api.ze_device_get(again).get()[0]
fresh = api.ze_context_create(again, ContextDesc()).get()
print(api.ze_mem_alloc_host(fresh, HostMemDesc(), 64).result.name)
print(api.ze_mem_alloc_host(context, HostMemDesc(), 64).result.name)
"""
    )
    client = client_of(code, surroundings)
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        daemon.kill()
        start_daemon()
        said, _ = client.communicate("go\n", timeout=30)
    finally:
        client.kill()
    assert said.split() == ["SUCCESS", "ERROR_DEVICE_LOST"]


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


def test_forked_child_gets_a_clear_error_and_then_a_session_of_its_own(
    start_daemon: StartDaemon, run: Run
) -> None:
    start_daemon()
    lines = run(FORK).stdout.splitlines()
    assert lines == ["{'ERROR_UNINITIALIZED'}", "SUCCESS b'a child!'", "0", "SUCCESS SUCCESS SUCCESS"]


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


def test_daemon_learns_of_the_parents_end_though_its_child_lives_on(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon()
    parent = client_of(ORPHAN, surroundings)
    try:
        assert parent.wait(timeout=30) == 0
        wait_until(lambda: daemon.status().session_count <= 1, 1.5, what="the end of the session")
    finally:
        parent.kill()
        said, _ = parent.communicate(timeout=30)  # closes the input: the child ends, and with it the output
    assert said == "left\n"


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


def test_process_may_end_with_everything_alive_and_the_library_closed(
    start_daemon: StartDaemon, run: Run
) -> None:
    daemon = start_daemon()
    assert run(AT_EXIT).stdout.splitlines() == ["end", "SUCCESS"]
    assert daemon.alive


def test_description_of_the_last_error_names_object_found_and_expected(
    start_daemon: StartDaemon, run: Run
) -> None:
    start_daemon()
    code = (
        PROLOGUE
        + """
import ctypes
from tests.conformance.native_driver.library import function
api.ze_mem_free(context, 0x1234)
text = ctypes.c_char_p()
function("zeDriverGetLastErrorDescription")(ctypes.c_void_p(driver), ctypes.byref(text))
print(text.value.decode())
"""
    )
    said = run(code).stdout
    assert said.startswith("zeMemFree: ZE_RESULT_ERROR_INVALID_ARGUMENT: address 0x1234: not the start")
    assert "expected" in said
