"""A race between two processes, for `softnpu check`: see check.md.

A producer fills a buffer that a consumer copies. It says "ready" when it has submitted the fill; only its end
would do. With `--right` it waits for that.
"""

from __future__ import annotations

import os
import sys

from softnpu.driver import CommandList, Context, Driver

BYTES = 1 << 20


def filled(context: Context, buffer: object) -> CommandList:
    """Return a list that fills the buffer."""
    commands = context.create_command_list()
    commands.append_memory_fill(buffer, b"\x2a", BYTES)  # type: ignore[arg-type]
    commands.close()
    return commands


def produce(shared: int, ready: int, consumed: int, right: bool) -> None:
    """Fill the buffer behind a descriptor, and say so."""
    with Driver.open() as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()
        queue.execute_command_lists([filled(context, context.import_memory(shared))])
        if right:
            queue.synchronize()
        os.write(ready, b"x")
        os.read(consumed, 1)
        queue.synchronize()


def main() -> None:
    """Start the producer, wait for its word, and copy."""
    with Driver.open() as driver:
        context = driver.devices[0].create_context()
        buffer = context.alloc_host(BYTES, export=True)
        buffer.view()[:] = 0
        copied = context.alloc_host(BYTES)
        shared = context.export_memory(buffer)
        (told, tell), (allowed, allow) = os.pipe(), os.pipe()
        producer = os.fork()
        if producer == 0:
            produce(shared, tell, allowed, "--right" in sys.argv)
            os._exit(0)
        os.read(told, 1)
        queue = context.create_command_queue()
        commands = context.create_command_list()
        commands.append_memory_copy(copied, buffer, BYTES)
        commands.close()
        queue.execute_command_lists([commands])
        os.write(allow, b"x")
        queue.synchronize()
        os.waitpid(producer, 0)
        print("all bytes arrived" if (copied.view() == 0x2A).all() else "some bytes are old")


if __name__ == "__main__":
    main()
