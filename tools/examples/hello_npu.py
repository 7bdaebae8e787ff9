"""Hello, NPU: two handwritten digits on their way through the device at once, call by call.

A Level Zero program's steps in order: find the device, create a context, compile a model, allocate device
memory, record command lists, submit them, wait, read times and profile, release everything. The C name of
every call is in its docstring, and in docs/level-zero.md.

    python -m softnpu.tools.examples.hello_npu
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from softnpu.driver import (
    Allocation,
    CommandList,
    Context,
    Device,
    Driver,
    Event,
    Graph,
    GraphSource,
)
from softnpu.driver.profiling import ProfilingPool, ProfilingQuery
from softnpu.tools.demo.digits import load_test_set, model_path

SECOND = 1_000_000_000
"""Time-outs are in nanoseconds."""


@dataclass
class Inference:
    """One image in flight: its memory, its commands, and the device's times and profile."""

    number: int
    image: Allocation
    probabilities: Allocation
    times: Allocation
    query: ProfilingQuery
    commands: CommandList

    def microseconds(self, device: Device) -> float:
        """Return the time from the first command of the list to the last, by the device's clock."""
        begin, end = self.times.view(np.uint64)
        return float(end - begin) * device.info.timer_ns_per_tick / 1000


def main() -> int:
    images, labels = load_test_set()
    # A driver is a session with the daemon, started if there is none. It ends with the block.
    with Driver.open() as driver:
        device = driver.devices[0]
        show_device(driver, device)
        with device.create_context() as context:  # its end releases all objects created in it
            right = classify(device, context, images, labels)
    print("everything is given back" if right else "this is not what the digits are")
    return 0 if right else 1


def show_device(driver: Driver, device: Device) -> None:
    """Show driver and device."""
    properties, version = device.get_properties(), driver.get_api_version()
    print(f"{properties.name}, platform {device.info.platform}, {properties.num_slices} tiles")
    print(f"Level Zero {version >> 16}.{version & 0xFFFF}, device id {properties.device_id:#x}")


def classify(device: Device, context: Context, images: np.ndarray, labels: np.ndarray) -> bool:
    """Classify two images, in flight together; return whether both were recognised."""
    graph = compile_model(context)
    # Pools are memory: one for the profile of each inference, one for the events.
    profiles, events = ProfilingPool(graph, 2), context.create_event_pool(2)
    copied, begun = events.create_event(0), events.create_event(1)
    inferences = [prepare(context, graph, number, profiles.create_query(number)) for number in range(2)]

    # Two queues run concurrently; only events order them: the second waits for the first one's copies.
    feeder, runner = context.create_command_queue(), context.create_command_queue(priority="high")
    staging = context.alloc_host(images[:2].nbytes)
    staging.view(np.float32, images[:2].shape)[:] = images[:2]
    copies = record_copies(context, staging, inferences, copied)
    for inference in inferences:
        record(inference, graph, copied, begun)

    # Both inferences are submitted before their data is ready. A fence tells the host the end of each.
    fences = [runner.create_fence() for _ in inferences]
    for inference, fence in zip(inferences, fences, strict=True):
        runner.execute_command_lists([inference.commands], fence)
    print(f"submitted: 2 inferences, ended: {sum(fence.query_status() for fence in fences)}")
    feeder.execute_command_lists([copies])
    for fence in fences:
        if not fence.host_synchronize(10 * SECOND):
            raise TimeoutError("an inference did not end within 10 s")
    print(f"data copied: {copied.query_status()}, first inference begun: {begun.query_status()}")

    digits = [show(inference, device, int(labels[inference.number])) for inference in inferences]
    show_profile(inferences[1].query)
    return digits == [int(label) for label in labels[:2]]


def compile_model(context: Context) -> Graph:
    """Compile in the compiler's own process; PERF_COUNT makes every inference write a profile."""
    with GraphSource.from_ir(model_path()) as source:
        graph = context.create_graph(source, {"PERF_COUNT": "YES"})
    graph.initialize()  # loads it onto the device
    print(f"compiled '{graph.meta.name}' in {graph.compile_ms:.0f} ms, loaded in {graph.load_ms:.0f} ms")
    for index, argument in enumerate(graph.meta.arguments):
        way = "input" if argument.input else "output"
        print(f"  argument {index}: {way} '{argument.name}', shape {list(argument.shape)}")
    return graph


def prepare(context: Context, graph: Graph, number: int, query: ProfilingQuery) -> Inference:
    """Prepare device memory, which is shared: the host accesses it as numpy arrays, without a copy."""
    image, probabilities = (context.alloc_device(argument.byte_size) for argument in graph.meta.arguments)
    times = context.alloc_host(2 * 8, alignment=64)
    return Inference(number, image, probabilities, times, query, context.create_command_list())


def record_copies(
    context: Context, staging: Allocation, inferences: list[Inference], copied: Event
) -> CommandList:
    """Record copying each image into its inference's memory; the last copy signals the event."""
    commands = context.create_command_list()
    size = inferences[0].image.size
    for inference in inferences:
        commands.append_memory_copy(inference.image, staging.address + inference.number * size, size)
    commands.append_barrier(signal_event=copied)
    commands.close()
    return commands


def record(inference: Inference, graph: Graph, copied: Event, begun: Event) -> None:
    """Wait for the data, note the time, infer, note the time."""
    # A graph remembers its arguments, and a list takes their values when the inference is appended:
    # one graph serves any number of lists.
    graph.set_argument_value(0, inference.image)
    graph.set_argument_value(1, inference.probabilities)
    begin, end = inference.times.address, inference.times.address + 8
    commands = inference.commands
    commands.append_write_global_timestamp(begin, signal_event=begun, wait_events=[copied])
    commands.append_graph_execute(graph, inference.query)
    commands.append_write_global_timestamp(end)
    commands.close()


def show(inference: Inference, device: Device, label: int) -> int:
    """Show and return the recognised digit."""
    probabilities = inference.probabilities.view(np.float32)
    digit = int(probabilities.argmax())
    time_us = inference.microseconds(device)
    print(f"image {inference.number}: a {digit} ({probabilities[digit]:.1%}), is a {label}; {time_us:.0f} us")
    return digit


def show_profile(query: ProfilingQuery) -> None:
    """Show the times of the executed layers, with the NPU unit that would do such work."""
    print("layer                               type            unit      time")
    for task in query.tasks():
        time_us = task.duration_ns / 1000
        print(f"{task.name[:34]:34}  {task.layer_type:14}  {task.exec_type.name:4}  {time_us:5.0f} us")


if __name__ == "__main__":
    sys.exit(main())
