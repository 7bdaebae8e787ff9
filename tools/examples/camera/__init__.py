"""A camera in C, an inference on the emulated NPU, a consumer in plain Python: one pipeline, nothing copied.

    python -m softnpu.tools.examples.camera                    200 frames
    python -m softnpu.tools.examples.camera --seconds 600 --kill

The three processes share memory under POSIX names (`layout`), and wake each other by semaphores. Each of them
may be killed at any instruction: how far they are is in counters in the shared memory, and whoever comes back
looks at these first. A semaphore is only the way to sleep until they change.
"""
