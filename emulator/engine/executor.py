"""The arithmetic: OpenVINO's CPU runtime, bound onto client memory.

The rest of the engine knows four verbs: load an image, bind it to memory, run, cancel.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.emulator.engine.layers import layer_records
from softnpu.emulator.interface.blob import ArgumentMeta, BlobReader, GraphMeta, Section
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.profiling import LayerRecord
from softnpu.emulator.interface.result import Fault, Refused, ZeResult, refuse

Bytes = npt.NDArray[np.uint8]

_PROPERTIES = (
    "INFERENCE_PRECISION_HINT",
    "PERFORMANCE_HINT",
    "EXECUTION_MODE_HINT",
    "INFERENCE_NUM_THREADS",
    "PERF_COUNT",
)
_SHORT_S = 500e-6
_core: ov.Core | None = None
_core_lock = threading.Lock()


def core() -> ov.Core:
    """The OpenVINO core of this process."""
    global _core
    with _core_lock:
        if _core is None:
            _core = ov.Core()
    return _core


class Binding:
    """One infer request whose inputs and outputs are client memory. `run` is one inference."""

    __slots__ = ("_request", "_short", "views")

    def __init__(self, compiled: ov.CompiledModel, meta: GraphMeta, views: Sequence[Bytes]) -> None:
        self.views = views  # keeps the mappings alive as long as the request may touch them
        self._request = compiled.create_infer_request()
        self._short = False
        inputs = len(meta.inputs)
        for index, (argument, view) in enumerate(zip(meta.arguments, views, strict=True)):
            tensor = ov.Tensor(view, ov.Shape(argument.shape), _type_of(argument))
            if index < inputs:
                self._request.set_input_tensor(index, tensor)
            else:
                self._request.set_output_tensor(index - inputs, tensor)

    def run(self) -> None:
        """Computes the outputs from the inputs; `RuntimeError` with OpenVINO's reason if it fails."""
        # `infer` computes in this thread, which saves the way to OpenVINO's own one and back: 12 us of 60
        # with a small network. With a big one on a busy machine its own one is faster: YOLOv8n took 14 ms
        # there and 20 ms here.
        if self._short:
            self._request.infer(share_outputs=True)
            return
        start = time.perf_counter()
        self._request.start_async()
        self._request.wait()
        self._short = time.perf_counter() - start < _SHORT_S

    def layers(self) -> tuple[LayerRecord, ...]:
        """What the last inference spent in each layer; empty unless the image was compiled to profile."""
        return layer_records(self._request.get_profiling_info())

    def cancel(self) -> None:
        """Asks a running inference to end early (from another thread)."""
        self._request.cancel()


class LoadedImage:
    """A compiled model on the device, shared by all graphs of this content."""

    def __init__(self, blob: memoryview, weights: Bytes | None) -> None:
        reader = BlobReader(blob)
        self.meta = reader.metadata()
        if weights is None and reader.has(Section.WEIGHTS):
            weights = np.frombuffer(bytearray(reader.read(Section.WEIGHTS)), dtype=np.uint8)
        self._weights = weights  # OpenVINO reads constants in place
        xml = bytes(reader.read(Section.IR))
        model = (
            core().read_model(xml)
            if weights is None
            else core().read_model(xml, ov.Tensor(weights, shared_memory=True))
        )
        if self.meta.shapes:
            inputs = enumerate(self.meta.inputs)
            shapes = self.meta.shapes
            model.reshape({index: list(shapes[a.name]) for index, a in inputs if a.name in shapes})
        self._compiled = core().compile_model(model, "CPU", _properties(self.meta))

    def bind(self, views: Sequence[Bytes]) -> Binding:
        """A request on these places: one view for each argument of the metadata, of its size."""
        return Binding(self._compiled, self.meta, views)


def load(blob_fd: int, blob_length: int, weights_fd: int | None, weights: WeightSource | None) -> LoadedImage:
    """Loads an image from its descriptors (closed here). Raises `Refused` with the reason."""
    try:
        blob = mmap.mmap(blob_fd, blob_length, prot=mmap.PROT_READ)
        view = None if weights is None or weights_fd is None else _map_weights(weights_fd, weights)
        return LoadedImage(memoryview(blob), view)
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise Refused(
            Fault(
                result=ZeResult.ERROR_MODULE_BUILD_FAILURE,
                object="graph",
                found=f"the engine cannot load it: {reason}",
                expected="a model that the device runs",
            )
        ) from error
    finally:
        os.close(blob_fd)
        if weights_fd is not None:
            os.close(weights_fd)


def timed_load(
    blob_fd: int, blob_length: int, weights_fd: int | None, weights: WeightSource | None
) -> tuple[LoadedImage, float]:
    """`load`, and how many milliseconds it took."""
    start = time.perf_counter()
    image = load(blob_fd, blob_length, weights_fd, weights)
    return image, (time.perf_counter() - start) * 1e3


def _map_weights(fd: int, source: WeightSource) -> Bytes:
    start = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY
    end = source.offset + source.length
    size = os.fstat(fd).st_size
    if end > size:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "weights file",
            f"{size} bytes now",
            f"at least the {end} bytes that it had when the model was compiled",
            "do not change a weights file while a model uses it",
        )
    # ACCESS_COPY: a private mapping that numpy calls writable, as ov.Tensor asks; nobody writes to it,
    # so its pages stay those of the page cache
    mapped = mmap.mmap(fd, end - start, access=mmap.ACCESS_COPY, offset=start)
    return np.frombuffer(mapped, dtype=np.uint8, count=source.length, offset=source.offset - start)


def _properties(meta: GraphMeta) -> dict[str, str]:
    chosen = {name: meta.config[name] for name in _PROPERTIES if name in meta.config}
    if chosen.get("INFERENCE_NUM_THREADS") == "0":
        del chosen["INFERENCE_NUM_THREADS"]  # 0 means all, which is OpenVINO's default
    return chosen


def _type_of(argument: ArgumentMeta) -> ov.Type:
    element_type: ov.Type = getattr(ov.Type, argument.element_type)
    return element_type
