"""Bind client memory to an infer request; run and cancel its inferences."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import openvino as ov

from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.interface.profiling import LayerRecord
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino.defects.shared_tensors import Origin
from softnpu.emulator.openvino.layers import layer_records
from softnpu.emulator.openvino.runtime import type_of

log = logging.getLogger(__name__)

_POLL_MS = 50
_OVERLAP_POLL_MS = 1
_LET_GO_STEPS, _LET_GO_STEP_MS = 20, 500
_SHORT_S = 500e-6


class Bindable(Protocol):
    """What a binding needs to know of an image, or of a part of one."""

    @property
    def meta(self) -> GraphMeta: ...
    @property
    def compiled(self) -> ov.CompiledModel: ...
    @property
    def origins(self) -> Mapping[int, Origin]: ...
    @property
    def unbound(self) -> frozenset[int]: ...
    @property
    def separated(self) -> frozenset[int]: ...


class Binding:
    """An infer request whose inputs and outputs are client memory.

    Outputs whose tensor cannot be set (`shared_tensors`, `LoadedImage.unbound`) are copied after each
    inference; `count_copied` receives the bytes. `is_short`: whether an inference is too short to be worth
    another thread.
    """

    __slots__ = (
        "_copies",
        "_count_copied",
        "_poll_ms",
        "_request",
        "_separated",
        "_started",
        "_unbound",
        "is_short",
        "views",
    )

    def __init__(self, image: Bindable, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> None:
        self._start(image, views, count_copied)
        inputs = len(image.meta.inputs)
        for index, (argument, view) in enumerate(zip(image.meta.arguments, views, strict=True)):
            position = index if argument.input else index - inputs
            origin = None if argument.input else image.origins.get(position)
            if origin is None:
                self._set_tensor(position, argument, view)
            else:
                self._copy(view, views[origin.position + (0 if origin.input else inputs)])

    def _start(self, image: Bindable, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> None:
        self.views = views  # keeps the mappings alive as long as the request may touch them
        self._request = image.compiled.create_infer_request()
        self.is_short = self._started = False
        self._poll_ms = _POLL_MS
        self._count_copied = count_copied
        self._copies: list[tuple[Bytes, Callable[[], Bytes]]] = []
        self._unbound, self._separated = image.unbound, image.separated

    def poll_often(self, often: bool) -> None:
        """Make `run` poll often, so that other inferences can start concurrently."""
        self._poll_ms = _OVERLAP_POLL_MS if often else _POLL_MS

    def start_early(self) -> None:
        """Start the inference that the next `run` waits for; worthwhile from 0.5 ms."""
        self._request.start_async()
        self._started = True

    def cancel_early(self) -> None:
        """Cancel the inference begun by `start_early`; its outputs are void."""
        if self._started:
            self._started = False
            self._cancel()

    @property
    def copies(self) -> bool:
        """Whether outputs are copied after an inference."""
        return bool(self._copies)

    def _set_tensor(self, position: int, argument: ArgumentMeta, view: Bytes) -> None:
        """Make an input or output use `view`."""
        shape = (1, *argument.shape) if position in self._separated and not argument.input else argument.shape
        tensor = ov.Tensor(view, ov.Shape(shape), type_of(argument))
        if argument.input:
            self._request.set_input_tensor(position, tensor)
        elif position in self._unbound:
            self._copies.append((view, partial(self._result, position, argument)))
        else:
            self._request.set_output_tensor(position, tensor)

    def _result(self, position: int, argument: ArgumentMeta) -> Bytes:
        """Return a result held in OpenVINO's memory."""
        result = self._request.get_output_tensor(position)
        if list(result.shape) != list(argument.shape):
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                f"output '{argument.name}'",
                found=f"a result of shape {list(result.shape)}",
                expected=f"shape {list(argument.shape)}, which the model declares",
                hint="give the model dynamic dimensions",
            )
        data: Bytes = result.data.reshape(-1).view(np.uint8)
        return data

    def _copy(self, output: Bytes, source: Bytes) -> None:
        """Copy `source`, which holds this output's value, to `output` after every inference."""
        if output.nbytes != source.nbytes:
            raise refuse(
                ZeResult.ERROR_MODULE_BUILD_FAILURE,
                "graph",
                found=f"an output of {output.nbytes} bytes that shares a tensor of {source.nbytes} bytes",
                expected="equal sizes",
            )
        self._copies.append((output, lambda: source))

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """Compute the outputs from the inputs; raise `RuntimeError` with OpenVINO's reason.

        `is_cancelled` is polled while a long inference runs. Once it returns True the inference
        ends: the result is False, and the outputs are void.
        """
        # `infer` computes in this thread, which saves two thread switches: 12 us of 60 with a small network.
        # With a big one on a busy machine OpenVINO's own thread is faster: YOLOv8n took 14 ms there and 20 ms
        # here.
        if self.is_short:
            self._request.infer(share_outputs=True)
            if self._copies:
                self._finish_copies()
            return True
        started, self._started = self._started, False
        start = time.perf_counter()
        if not started:
            self._request.start_async()
        try:
            while not self._request.wait_for(self._poll_ms):
                if is_cancelled():
                    self._cancel()
                    return False
        except BaseException:
            self._cancel()  # nothing may be written after the failure is reported
            raise
        self._request.wait()  # raises the error
        self.is_short = not started and time.perf_counter() - start < _SHORT_S
        if self._copies:
            self._finish_copies()
        return True

    def layers(self) -> tuple[LayerRecord, ...]:
        """Return the profile of the last inference; empty unless the image was compiled to profile."""
        return layer_records(self._request.get_profiling_info())

    def _finish_copies(self) -> None:
        for output, source in self._copies:
            np.copyto(output, source())
            self._count_copied(output.nbytes)

    def _cancel(self) -> None:
        """End the running inference at a layer boundary; its outputs are void.

        A loop inside a layer may never reach one while it writes client memory: then this engine ends.
        """
        self._request.cancel()
        with contextlib.suppress(RuntimeError):  # "cancelled"
            # counted in steps: time spent stopped does not count
            if not any(self._request.wait_for(_LET_GO_STEP_MS) for _ in range(_LET_GO_STEPS)):
                # this engine ends without cleanup: other threads may still write client memory
                log.critical("an inference that was cancelled does not end: the engine ends")
                os._exit(link.EXIT_HELD)
            self._request.wait()
