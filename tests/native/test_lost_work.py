"""Work lost with its daemon: how programs learn of it, and what does not carry over to the next daemon."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import StartDaemon
from tests.native.conftest import client
from tests.native.test_lifetime import PROLOGUE

Printed = Callable[..., list[str]]

_LOST = "ERROR_DEVICE_LOST"

HELD = (
    PROLOGUE
    + """
pool = api.ze_event_pool_create(context, EventPoolDesc(1), 0, None).get()
gate = api.ze_event_create(pool, EventDesc(0)).get()
held = list_in(context)
api.ze_command_list_append_wait_on_events(held, 1, [gate])
api.ze_command_list_close(held)
def execute(queue, commands, fence=None):
    return api.ze_command_queue_execute_command_lists(queue, 1, [commands], fence).name
def synchronize(queue, timeout=10**10): return api.ze_command_queue_synchronize(queue, timeout).name
def hold(fence=None):
    queue = queue_in(context)
    assert execute(queue, held, fence) == "SUCCESS"
    return queue
def fresh(): return api.ze_mem_alloc_host(context, HostMemDesc(), 64).get()
def filling(memory):
    commands = list_in(context)
    api.ze_command_list_append_memory_fill(commands, memory, b"\\3", 64)
    api.ze_command_list_close(commands)
    return commands
def next_daemon():
    print("ready", flush=True)
    sys.stdin.readline()
    # from here on the queues are those of the next session
    return fresh()
"""
)


@pytest.fixture
def printed(start_daemon: StartDaemon, surroundings: dict[str, str]) -> Printed:
    """Return the output of a program whose daemon is replaced, when it is ready, by one with these faults."""

    def run(code: str, *, restarts: int = 1, inject: str = "", **variables: str) -> list[str]:
        daemon = start_daemon(tdr_ms=60000)
        with client(HELD + code, surroundings | variables, "ready") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for restart in range(restarts):
                if restart:
                    assert process.stdout.readline() == "ready\n"
                daemon.kill()
                daemon = start_daemon(tdr_ms=60000, inject=inject)
                process.stdin.write("go\n")
                process.stdin.flush()
            said, _ = process.communicate(timeout=30)
        return said.splitlines()

    return run


def test_lost_work_is_reported_once_by_the_queue_of_the_next_session(printed: Printed) -> None:
    code = """
idle, asked, used = queue_in(context), hold(), hold()
memory = next_daemon()
print(synchronize(idle))
print(synchronize(asked, 0), "daemon" in api.ze_driver_get_last_error_description(driver).value)
print(synchronize(asked))
# work of the new session does not hide it, and is not lost with it
print(execute(used, filling(memory)), synchronize(used), synchronize(used), api.read(memory, 2))
"""
    assert printed(code) == [
        "SUCCESS",
        f"{_LOST} True",
        "SUCCESS",
        f"SUCCESS {_LOST} SUCCESS b'\\x03\\x03'",
    ]


def test_lost_work_is_reported_even_if_the_next_daemon_is_lost_too(printed: Printed) -> None:
    code = """
queue = hold()
next_daemon()
next_daemon()
print(synchronize(queue), synchronize(queue))
"""
    assert printed(code, restarts=2) == [f"{_LOST} SUCCESS"]


def test_lost_work_reported_by_a_waiter_or_fence_is_not_reported_again(printed: Printed) -> None:
    code = """
waited, fenced = hold(), queue_in(context)
fence = api.ze_fence_create(fenced, FenceDesc()).get()
assert execute(fenced, held, fence) == "SUCCESS"
told = []
waiter = threading.Thread(target=lambda: told.append(synchronize(waited, 2**64 - 1)))
waiter.start()
memory = next_daemon()
waiter.join(20)
print(told, synchronize(waited))
print(api.ze_fence_host_synchronize(fence, 10**10).name, synchronize(fenced))
for queue in (waited, fenced):
    print(execute(queue, filling(memory)), synchronize(queue))
"""
    assert printed(code) == [
        f"['{_LOST}'] SUCCESS",
        f"{_LOST} SUCCESS",
        "SUCCESS SUCCESS",
        "SUCCESS SUCCESS",
    ]


def test_fences_and_immediate_lists_stay_lost(printed: Printed) -> None:
    code = """
queue = queue_in(context)
fence = api.ze_fence_create(queue, FenceDesc()).get()
immediate = api.ze_command_list_create_immediate(context, device, CommandQueueDesc()).get()
api.ze_command_list_append_wait_on_events(immediate, 1, [gate])
memory = next_daemon()
print(api.ze_command_list_host_synchronize(immediate, 10**10).name)
print(api.ze_command_list_append_barrier(immediate).name)
print(execute(queue, filling(memory), fence), synchronize(queue), api.read(memory, 2))
again = api.ze_fence_create(queue, FenceDesc()).get()
print(execute(queue, filling(memory), again), api.ze_fence_host_synchronize(again, 10**10).name)
print(api.ze_command_queue_destroy(queue).name)
print(api.ze_fence_query_status(fence).name, api.ze_fence_query_status(again).name)
"""
    assert printed(code) == [
        _LOST,
        _LOST,
        f"{_LOST} SUCCESS b'\\x00\\x00'",
        "SUCCESS SUCCESS",
        "SUCCESS",
        "ERROR_INVALID_NULL_HANDLE ERROR_INVALID_NULL_HANDLE",
    ]


def test_destroying_a_queue_meanwhile_loses_no_other_queue(printed: Printed) -> None:
    code = """
from softnpu.driver import Driver
from tests.support.waiting import wait_until
queues = [queue_in(context) for _ in range(4)]
def destroy():
    # the next daemon has the context, and takes its time for the first queue
    with Driver.open(role="monitor") as monitor:
        wait_until(lambda: any(one.contexts for one in monitor.status("status").sessions))
    print(*(api.ze_command_queue_destroy(queue).name for queue in (queues[0], queues[2])))
print("ready", flush=True)
sys.stdin.readline()
thread = threading.Thread(target=destroy)
thread.start()
memory = fresh()
thread.join(20)
for queue in (queues[1], queues[3]):
    print(execute(queue, filling(memory)), synchronize(queue))
with Driver.open(role="monitor") as monitor:
    print(sum(one.queues for one in monitor.status("status").sessions))
"""
    said = printed(code, inject="delay=queue_create=1s")
    assert said == ["SUCCESS SUCCESS", "SUCCESS SUCCESS", "SUCCESS SUCCESS", "2"]


def test_a_background_queue_stays_one(printed: Printed) -> None:
    code = """
from softnpu.driver import faults
background, back_again, other = (queue_in(context) for _ in range(3))
for queue, workloads in ((background, [1]), (back_again, [1, 0])):
    for workload in workloads:
        assert api.ze_command_queue_set_workload_type(queue, workload).name == "SUCCESS"
memory = next_daemon()
(asked,) = faults.status()
print(asked.hits)
for queue in (background, back_again, other):
    print(execute(queue, filling(memory)), synchronize(queue))
"""
    said = printed(code, inject="delay=queue_workload=1ms:count=*")
    assert said == ["1", *["SUCCESS SUCCESS"] * 3]


def test_metrics_of_a_lost_session_are_not_used_in_the_next_one(printed: Printed) -> None:
    code = """
def activated():
    groups = api.zet_metric_group_get(device).get()
    return groups[0], api.zet_context_activate_metric_groups(context, device, groups).name
def query_of(group):
    pool = api.zet_metric_query_pool_create(context, device, group, 1).get()
    return api.zet_metric_query_create(pool, 0).get()
def count_with(query):
    print(api.zet_command_list_append_metric_query_begin(commands, query).name)
    print(api.zet_command_list_append_metric_query_end(commands, query).name)
old, _ = activated()
query = query_of(old)
# one of them may have the number that the memory of the query had
memories = [next_daemon(), *(fresh() for _ in range(8))]
commands = list_in(context)
count_with(query)
print(api.zet_metric_query_pool_create(context, device, old, 1).result.name)
print(api.zet_metric_streamer_open(context, device, old, 10**6).result.name)
print(api.zet_context_activate_metric_groups(context, device, [old]).name)
group, result = activated()
print(result)
print(api.zet_metric_streamer_open(context, device, group, 10**6, 1, gate).result.name)
count_with(query_of(group))
api.ze_command_list_close(commands)
queue = queue_in(context)
print(execute(queue, commands), synchronize(queue))
print({api.read(memory, 64) for memory in memories} == {bytes(64)})
"""
    assert printed(code, ZET_ENABLE_METRICS="1") == [
        *[_LOST] * 5,
        "SUCCESS",
        _LOST,
        "SUCCESS",
        "SUCCESS",
        "SUCCESS SUCCESS",
        "True",
    ]
