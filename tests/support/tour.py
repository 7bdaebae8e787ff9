"""A client that takes every step of the protocol once and reports what it saw: the kill matrix's walk."""

from __future__ import annotations

TOUR = """
import numpy as np
from softnpu.driver.graph_creation import import_blob

def tour():
    image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
    with Driver.open(Path(given["socket"])) as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()
        with GraphSource.from_ir(Path(given["xml"])) as source:
            graph, memory = load(context, source)
        memory[0].view(np.float32, (1, 1, 8, 8))[:] = image
        event, done = context.create_event(), context.create_event()
        commands = recorded(
            context,
            lambda c: c.append_event_reset(done),
            lambda c: c.append_graph_execute(graph),
            lambda c: c.append_wait_on_events([event]),
            lambda c: c.append_signal_event(done),
        )
        fence = queue.create_fence()
        queue.execute_command_lists([commands], fence)
        assert not fence.host_synchronize(1_000_000)
        event.host_signal()
        assert fence.host_synchronize(60 * 10**9), "no end of the inference"
        assert done.query_status(), "the last command has not run"
        numbers = memory[1].view(np.float32).tolist()
        line = context.alloc_host(4096)
        line.view()[:] = np.arange(4096) % 251
        commands = recorded(context, lambda c: c.append_memory_copy(line.view()[64:], line, 4032))
        fence = queue.create_fence()
        queue.execute_command_lists([commands], fence)
        assert fence.host_synchronize(60 * 10**9), "no end of the copy"
        assert (line.view()[64:] == np.arange(4032) % 251).all(), "the copy is wrong"
        blob = bytes(graph.get_native_binary())
        again = import_blob(context, blob)
        shared = context.alloc_host(4096, export=True)
        fd = context.export_memory(shared)
        other = driver.devices[0].create_context()
        taken = other.import_memory(fd)
        os.close(fd)
        taken.destroy()
        shared.destroy()
        memory[0].destroy()
        context.alloc_host(64)
        other.destroy()
        context.destroy()
    return {"numbers": numbers}
"""

TOUR += """
try:
    outcome = tour()
except ZeError as error:
    outcome = {"error": error.result.name, "text": str(error)}
except MemoryError as error:
    outcome = {"error": "MemoryError", "text": str(error)}
except OSError as error:
    outcome = {"error": "OSError", "text": str(error)}
say(outcome)
"""
"""Says `numbers` at its end, or `error` and `text`."""
