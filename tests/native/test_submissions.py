"""Submissions, fences and events when an engine, a queue or the daemon ends."""

from __future__ import annotations

import pytest

from tests.conftest import StartDaemon
from tests.native.conftest import Run, RunProgram, client
from tests.native.test_lifetime import PROLOGUE

HELPERS = (
    PROLOGUE
    + """
FOREVER, LONG, BRIEF = 2**64 - 1, 30 * 10**9, 2 * 10**8
def ok(result):
    assert result.name == "SUCCESS", (result.name, api.ze_driver_get_last_error_description(driver).value)
def host(size, value=0):
    memory = api.ze_mem_alloc_host(context, HostMemDesc(), size).get()
    api.write(memory, bytes([value]) * size)
    return memory
def events(count):
    pool = api.ze_event_pool_create(context, EventPoolDesc(count), 0, None).get()
    return [api.ze_event_create(pool, EventDesc(index)).get() for index in range(count)]
def fence_of(queue): return api.ze_fence_create(queue, FenceDesc()).get()
def fill(memory, value, wait=None):
    commands = list_in(context)
    if wait is not None: ok(api.ze_command_list_append_wait_on_events(commands, 1, [wait]))
    ok(api.ze_command_list_append_memory_fill(commands, memory, bytes([value]), 64))
    ok(api.ze_command_list_close(commands))
    return commands
def submit(queue, commands, fence=None):
    ok(api.ze_command_queue_execute_command_lists(queue, 1, [commands], fence))
def in_thread(call):
    ended = []
    thread = threading.Thread(target=lambda: ended.append(call()), daemon=True)
    thread.start()
    return thread, ended
def asleep(thread):
    # twice: what waits for the device sleeps in slices
    def state(): return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(") ", 1)[1][0]
    while not (state() == "S" and state() == "S"): time.sleep(0.001)
def meanwhile(done):
    print(done, flush=True)
    assert sys.stdin.readline() == "go on\\n"
"""
)


REUSED_PLACE = """
first, second = queue_in(context), queue_in(context)
memory, (gate,) = host(64), events(1)
done = fence_of(first)
submit(first, fill(memory, 1), done)
ok(api.ze_fence_host_synchronize(done, LONG))
ok(api.ze_fence_destroy(done))
# the same place, the same number: the first submission of a queue
fence = fence_of(second)
submit(second, fill(memory, 2, gate), fence)
meanwhile("waiting")
print(api.ze_fence_query_status(fence).name, api.read(memory, 1))
ok(api.ze_event_host_signal(gate))
print(api.ze_fence_host_synchronize(fence, LONG).name, api.read(memory, 1))
"""


def test_engine_reset_does_not_signal_a_fence_in_a_reused_slot(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon(tdr_ms=60000)
    with client(HELPERS + REUSED_PLACE, surroundings, "waiting") as process:
        daemon.kill_engine()
        daemon.wait_restarted(1)
        said, _ = process.communicate("go on\n", timeout=60)
    assert said.splitlines() == ["NOT_READY b'\\x01'", "SUCCESS b'\\x02'"]


DESTROYED_QUEUE = """
first, second = queue_in(context), queue_in(context)
memory, (gate,) = host(128), events(1)
fence = fence_of(first)
submit(first, fill(memory, 1), fence)
def take_its_place():
    result = api.ze_fence_host_synchronize(fence, FOREVER)
    mine = fence_of(second)
    submit(second, fill(memory + 64, 2, gate), mine)
    return result.name, mine
thread, ended = in_thread(take_its_place)
asleep(thread)
ok(api.ze_command_queue_destroy(first))
thread.join(30)
(result, mine), = ended
print(result)
print(api.ze_fence_query_status(mine).name, api.read(memory + 64, 1))
ok(api.ze_event_host_signal(gate))
print(api.ze_fence_host_synchronize(mine, LONG).name, api.read(memory + 64, 1))
"""


def test_end_of_a_destroyed_queue_does_not_signal_a_fence_in_a_reused_slot(
    start_daemon: StartDaemon, run: Run
) -> None:
    # the first submission has run, and its fence is signalled when its slot belongs to another
    start_daemon(tdr_ms=60000, failpoints="engine.ended=sleep(2000)")
    said = run(HELPERS + DESTROYED_QUEUE).stdout
    assert said.splitlines() == ["ERROR_INVALID_NULL_HANDLE", "NOT_READY b'\\x00'", "SUCCESS b'\\x02'"]


EVENT_ONCE = """
queue, memory, (told, gate) = queue_in(context), host(64), events(2)
commands = list_in(context)
ok(api.ze_command_list_append_memory_fill(commands, memory, b"\\1", 64))
ok(api.ze_command_list_append_signal_event(commands, told))
ok(api.ze_command_list_append_wait_on_events(commands, 1, [gate]))
ok(api.ze_command_list_close(commands))
submit(queue, commands)
ok(api.ze_event_host_synchronize(told, LONG))
ok(api.ze_event_host_reset(told))
meanwhile("reset")
ok(api.ze_event_host_signal(gate))
ok(api.ze_command_queue_synchronize(queue, LONG))
print(api.ze_event_query_status(told).name)
"""


def test_event_reset_by_the_host_is_not_signalled_again_by_the_next_engine(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    daemon = start_daemon(tdr_ms=60000)
    with client(HELPERS + EVENT_ONCE, surroundings, "reset") as process:
        daemon.kill_engine()
        daemon.wait_restarted(1)
        said, _ = process.communicate("go on\n", timeout=60)
    assert said == "NOT_READY\n"


FULL_RING = """
queue, memory, (gate,) = queue_in(context), host(64), events(1)
commands = fill(memory, 1, gate)
for _ in range(256): submit(queue, commands)
"""

FULL_RING_ENDS = (
    FULL_RING
    + """
thread, ended = in_thread(lambda: api.ze_command_queue_execute_command_lists(queue, 1, [commands], None))
asleep(thread)
meanwhile("waiting")
%s
thread.join(30)
print(ended[0].name)
"""
)


@pytest.mark.parametrize(
    ("call", "result"),
    [("api.ze_command_queue_destroy(queue)", "ERROR_INVALID_NULL_HANDLE"), ("", "ERROR_DEVICE_LOST")],
    ids=["queue", "daemon"],
)
def test_wait_for_a_slot_ends_with_the_queue_and_with_the_daemon(
    start_daemon: StartDaemon, surroundings: dict[str, str], call: str, result: str
) -> None:
    daemon = start_daemon(tdr_ms=60000)
    with client(HELPERS + FULL_RING_ENDS % call, surroundings, "waiting") as process:
        if not call:
            daemon.kill()
        said, _ = process.communicate("go on\n", timeout=60)
    assert said == f"{result}\n"


LIST_RECORDED_ANEW = (
    FULL_RING
    + """
target, other = host(64), host(64)
mine = fill(target, 7)
thread, ended = in_thread(lambda: api.ze_command_queue_execute_command_lists(queue, 1, [mine], None))
asleep(thread)
# its queue has taken the list, and waits for a slot
ok(api.ze_command_list_reset(mine))
ok(api.ze_command_list_append_memory_fill(mine, other, b"\\5", 64))
ok(api.ze_command_list_close(mine))
ok(api.ze_event_host_signal(gate))
thread.join(30)
print(ended[0].name, api.ze_command_queue_synchronize(queue, LONG).name)
print(api.read(target, 1), api.read(other, 1))
"""
)


def test_list_is_submitted_as_it_was_when_the_queue_accepted_it(start_daemon: StartDaemon, run: Run) -> None:
    start_daemon(tdr_ms=60000)
    said = run(HELPERS + LIST_RECORDED_ANEW).stdout
    assert said.splitlines() == ["SUCCESS SUCCESS", "b'\\x07' b'\\x00'"]


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_concurrent_appends_to_one_immediate_list_all_happen(
    start_daemon: StartDaemon, program: RunProgram, mode: str
) -> None:
    start_daemon()
    assert program("appends", "4", "100", mode) == "0 of 400 fills are missing\n"
