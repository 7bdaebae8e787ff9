"""The shared definitions of the three processes: names, memory layout, and the pixels of a frame.

    NAME            made by the camera: three counters, then the slots with frames
    NAME-results    published by the inference: a slot for each frame
    NAME-free, NAME-frames, NAME-inferred    semaphores, made by whoever starts the pipeline

Frame `s` lies in slot `s % SLOTS`. A counter is stored when the work is done: `written` by the camera,
`inferred` by the inference, `consumed` by the consumer. A result is complete when its stamp is `s + 1`.
"""

from __future__ import annotations

import math

SLOTS = 4
SHAPE = (1, 1, 8, 8)
PIXELS = math.prod(SHAPE)
CLASSES = 10
VARIANTS = 64
"""Frames repeat after this many."""

WRITTEN, INFERRED, CONSUMED = 0, 8, 16
"""Counters, as indices of 64-bit words, each in its own cache line."""
FRAMES_AT = 4096
FRAME_STRIDE = 4096
FRAMES_SIZE = FRAMES_AT + SLOTS * FRAME_STRIDE

RESULT_STRIDE = 128
RESULT_AT = 64
"""Offset of a result's numbers, after its stamp."""
RESULTS_SIZE = SLOTS * RESULT_STRIDE


def frame_at(sequence: int) -> int:
    """Return the offset of a frame in the camera's memory."""
    return FRAMES_AT + sequence % SLOTS * FRAME_STRIDE


def result_at(sequence: int) -> int:
    """Return the offset of a result's stamp."""
    return sequence % SLOTS * RESULT_STRIDE


def pixels(sequence: int) -> list[float]:
    """Return the pixels of a frame, as `camera.c` makes them: numbers exact in f32."""
    variant = sequence % VARIANTS
    return [(variant * 37 + pixel * 11) % 17 / 16 for pixel in range(PIXELS)]
