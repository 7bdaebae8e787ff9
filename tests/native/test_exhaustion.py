"""Too little of something: the documented result, and everything works again afterwards."""

from __future__ import annotations

from tests.conftest import StartDaemon
from tests.native.conftest import Run
from tests.native.test_lifetime import PROLOGUE

DESCRIPTORS = (
    PROLOGUE
    + """
import resource
def used(): return api.ze_graph_query_context_memory(context, 1).get().allocated
before = used()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
# memory to export lies in a segment of its own, whose descriptor finds no room
results = {api.ze_mem_alloc_host(context, HostMemDesc(export=2), 4096).result.name for _ in range(3)}
results.add(api.ze_context_create(driver, ContextDesc()).result.name)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(results)
print(used() - before)
print(api.ze_mem_alloc_host(context, HostMemDesc(export=2), 4096).result.name)
"""
)


def test_no_free_descriptor_is_out_of_host_memory(start_daemon: StartDaemon, run: Run) -> None:
    start_daemon()
    lines = run(DESCRIPTORS).stdout.splitlines()
    assert lines == ["{'ERROR_OUT_OF_HOST_MEMORY'}", "0", "SUCCESS"]


MEMORY = (
    PROLOGUE
    + """
results = [api.ze_mem_alloc_host(context, HostMemDesc(), 48 << 20) for _ in range(2)]
print([answer.result.name for answer in results])
api.ze_mem_free(context, results[0].value)
print(api.ze_mem_alloc_host(context, HostMemDesc(), 48 << 20).result.name)
"""
)


def test_more_memory_than_the_session_may_have_is_out_of_device_memory(
    start_daemon: StartDaemon, run: Run
) -> None:
    start_daemon(session_memory=64 << 20)
    assert run(MEMORY).stdout.splitlines() == ["['SUCCESS', 'ERROR_OUT_OF_DEVICE_MEMORY']", "SUCCESS"]


QUEUES = (
    PROLOGUE
    + """
first = api.ze_command_queue_create(context, device, CommandQueueDesc())
while (last := api.ze_command_queue_create(context, device, CommandQueueDesc())).value: pass
print(last.result.name)
print(api.ze_command_queue_destroy(first.value).name)
print(api.ze_command_queue_create(context, device, CommandQueueDesc()).result.name)
"""
)


def test_more_queues_than_the_daemon_gives_is_out_of_host_memory(start_daemon: StartDaemon, run: Run) -> None:
    start_daemon()
    assert run(QUEUES).stdout.splitlines() == ["ERROR_OUT_OF_HOST_MEMORY", "SUCCESS", "SUCCESS"]
