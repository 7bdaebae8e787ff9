"""A zero-copy pipeline: a camera in C, an inference on the emulated NPU, a consumer in plain Python.

    python -m softnpu.tools.examples.camera                    200 frames
    python -m softnpu.tools.examples.camera --seconds 600 --kill

The three processes share memory under POSIX names (`layout`), and wake each other by semaphores. Each may be
killed at any instruction: their progress is kept in counters in shared memory, which a restarted process
reads first. A semaphore is only a way to sleep until they change.
"""
