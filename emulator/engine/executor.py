"""The arithmetic: OpenVINO's CPU runtime, bound onto client memory.

The rest of the engine knows four verbs: load an image, bind it to memory, run, cancel.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.emulator.blob.constant_digests import check_constants
from softnpu.emulator.blob.container import ArgumentMeta, BlobReader, GraphMeta, Section
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement, offsets_in_space, with_actual_offsets
from softnpu.emulator.engine.layers import layer_records
from softnpu.emulator.engine.shared_tensors import origins
from softnpu.emulator.interface.profiling import LayerRecord
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.links import engine as link

Bytes = npt.NDArray[np.uint8]

_PROPERTIES = (
    "INFERENCE_PRECISION_HINT",
    "EXECUTION_MODE_HINT",
    "INFERENCE_NUM_THREADS",
    "PERF_COUNT",
)
_LOOK_MS = 50
_LOOK_FOR_MORE_MS = 1
_MOST_STREAMS = 4
_SHORT_S = 500e-6
_LARGE = 64 << 20
_GIVE_BACK_S = 0.005
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
    """One infer request whose inputs and outputs are client memory. `run` is one inference.

    Outputs that OpenVINO does not let be set (`shared_tensors`, `LoadedImage.unbound`) are copied at its end;
    `copied` is told how many bytes.
    """

    __slots__ = ("_begun", "_copied", "_copies", "_look_ms", "_request", "_short", "_unbound", "views")

    def __init__(self, image: LoadedImage, views: Sequence[Bytes], copied: Callable[[int], None]) -> None:
        self._start(image, views, copied)
        inputs = len(image.meta.inputs)
        for index, (argument, view) in enumerate(zip(image.meta.arguments, views, strict=True)):
            position = index if argument.input else index - inputs
            origin = None if argument.input else image.origins.get(position)
            if origin is None:
                self._place(position, argument, view)
            else:
                self._copy(view, views[origin.position + (0 if origin.input else inputs)])

    def _start(self, image: LoadedImage, views: Sequence[Bytes], copied: Callable[[int], None]) -> None:
        self.views = views  # keeps the mappings alive as long as the request may touch them
        self._request = image.compiled.create_infer_request()
        self._short = self._begun = False
        self._look_ms = _LOOK_MS
        self._copied = copied
        self._copies: list[tuple[Bytes, Callable[[], Bytes]]] = []
        self._unbound = image.unbound

    def overlap(self) -> None:
        """Others of its image may run beside it: `run` asks often, so that they can begin."""
        self._look_ms = _LOOK_FOR_MORE_MS

    def begin(self) -> None:
        """Starts an inference before its turn; `run` then waits for this one. Not for one of under 0.5 ms."""
        self._request.start_async()
        self._begun = True

    def call_off(self) -> None:
        """Ends what `begin` has started; its outputs are void, and not written any more."""
        if self._begun:
            self._begun = False
            self._cancel()

    @property
    def short(self) -> bool:
        """Whether an inference takes less time than handing it to another thread is worth."""
        return self._short

    def _place(self, position: int, argument: ArgumentMeta, view: Bytes) -> None:
        """Input or output `position` lies in `view` from now on."""
        tensor = ov.Tensor(view, ov.Shape(argument.shape), type_of(argument))
        if argument.input:
            self._request.set_input_tensor(position, tensor)
        elif position in self._unbound:
            self._copies.append((view, partial(self._result, position, argument)))
        else:
            self._request.set_output_tensor(position, tensor)

    def _result(self, position: int, argument: ArgumentMeta) -> Bytes:
        """What OpenVINO has computed in memory of its own."""
        result = self._request.get_output_tensor(position).data
        if list(result.shape) != list(argument.shape):
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                f"output '{argument.name}'",
                found=f"a result of shape {list(result.shape)}",
                expected=f"shape {list(argument.shape)}, which the model declares",
                hint="give the model dynamic dimensions",
            )
        data: Bytes = result.reshape(-1).view(np.uint8)
        return data

    def _copy(self, output: Bytes, source: Bytes) -> None:
        """Every inference ends with a copy of `source`, which has this output's value."""
        if output.nbytes != source.nbytes:
            raise refuse(
                ZeResult.ERROR_MODULE_BUILD_FAILURE,
                "graph",
                found=f"an output of {output.nbytes} bytes that shares a tensor of {source.nbytes} bytes",
                expected="equal sizes",
            )
        self._copies.append((output, lambda: source))

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """Computes the outputs from the inputs; `RuntimeError` with OpenVINO's reason if it fails.

        `given_up` is asked now and then while a long inference runs. It ends it early by its answer: then the
        result is False, and the outputs are void.
        """
        # `infer` computes in this thread, which saves the way to OpenVINO's own one and back: 12 us of 60
        # with a small network. With a big one on a busy machine its own one is faster: YOLOv8n took 14 ms
        # there and 20 ms here.
        if self._short:
            self._request.infer(share_outputs=True)
            if self._copies:
                self._finish_copies()
            return True
        begun, self._begun = self._begun, False
        start = time.perf_counter()
        if not begun:
            self._request.start_async()
        try:
            while not self._request.wait_for(self._look_ms):
                if is_cancelled():
                    self._cancel()
                    return False
        except BaseException:
            self._cancel()  # nothing may be written once the failure is told
            raise
        self._request.wait()  # raises what went wrong
        self._short = not begun and time.perf_counter() - start < _SHORT_S
        if self._copies:
            self._finish_copies()
        return True

    def layers(self) -> tuple[LayerRecord, ...]:
        """What the last inference spent in each layer; empty unless the image was compiled to profile."""
        return layer_records(self._request.get_profiling_info())

    def _finish_copies(self) -> None:
        for output, source in self._copies:
            np.copyto(output, source())
            self._copied(output.nbytes)

    def _cancel(self) -> None:
        """Ends the running inference at the border of a layer; its outputs are void."""
        self._request.cancel()
        with contextlib.suppress(RuntimeError):  # it says that it was cancelled
            self._request.wait()


class LoadedImage:
    """A compiled model on the device, shared by all graphs of this content.

    Constants are used where they lie: sources and blob stay mapped as long as the image lives. `check`
    compares them with the digests in the blob first, and refuses others by name. `streams`: how many
    inferences it can do side by side, each with its part of the threads.
    """

    def __init__(
        self, blob: memoryview, placement: Placement | None, space: WeightSpace, check: bool = False
    ) -> None:
        reader = BlobReader(blob)
        self.meta = reader.metadata()
        reference = reader.weights_reference()
        actual = offsets_in_space(reference, placement, space.layout, space.embedded)
        if check and reference is not None:
            outside = [actual[constant.offset] for constant in reference.outside]
            check_constants(reference, outside, space, f"model '{self.meta.name}'", lambda _: None)
        xml = with_actual_offsets(bytes(reader.read(Section.IR)), actual)
        self._weights = np.frombuffer(space.view, dtype=np.uint8)
        self._space = space
        model = core().read_model(xml, ov.Tensor(self._weights, shared_memory=True))
        self.compilations = 0
        self._compile(model)
        self._model = model if model.is_dynamic() else None
        self.unbound: frozenset[int] = frozenset(_other_shapes(self.meta, self.compiled))
        """Positions of outputs whose port has another shape after compilation than the model declares."""
        self.streams = int(self.compiled.get_property("NUM_STREAMS"))
        self.origins = origins(self.compiled)

    def renew(self) -> None:
        """Compile a model with dynamic dimensions again: requests made before must not be used any more.

        After an inference that failed OpenVINO's compiled model (2026.4) may refuse right shapes for good, in
        new requests as well.
        """
        if self._model is not None:
            self._compile(self._model)

    def _compile(self, model: ov.Model) -> None:
        with _kept_light(self._space):
            self.compiled = core().compile_model(model, "CPU", _properties(self.meta))
        self.compilations += 1


def _other_shapes(meta: GraphMeta, compiled: ov.CompiledModel) -> Iterator[int]:
    outputs = [argument for argument in meta.arguments if not argument.input and argument.shape_of < 0]
    for position, (argument, port) in enumerate(zip(outputs, compiled.outputs, strict=True)):
        if not argument.is_dynamic and port.partial_shape != ov.PartialShape(list(argument.shape)):
            yield position


def load(order: link.ImageLoad, fds: Sequence[int]) -> LoadedImage:
    """Loads an image from its descriptors (closed here). Raises `Refused` with the reason."""
    try:
        blob = memoryview(mmap.mmap(fds[0], order.blob_length, prot=mmap.PROT_READ))
        section = BlobReader(blob).extent(Section.WEIGHTS)
        sources = fds[len(fds) - len(order.weights) :]
        space = WeightSpace(order.weights, sources, "graph", None if section is None else (fds[0], *section))
        placement = None
        if order.placement_length:
            placement = Placement.decode(os.pread(fds[1], order.placement_length, 0))
        return LoadedImage(blob, placement, space, order.check)
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise Refused(
            ErrorInfo(
                result=ZeResult.ERROR_MODULE_BUILD_FAILURE,
                object="graph",
                found=f"the engine cannot load it: {reason}",
                expected="a model that the device runs",
            )
        ) from error
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def _kept_light(space: WeightSpace) -> Iterator[None]:
    """Gives pages of large weights back while OpenVINO makes its own form of them, and at the end.

    Otherwise both are in memory: twice the weights. What is used as it lies comes back from the file.
    """
    if space.layout.size < _LARGE:
        yield
        return
    done = threading.Event()

    def give_back() -> None:
        while not done.wait(_GIVE_BACK_S):
            space.release_pages()

    thread = threading.Thread(target=give_back, name="weights")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        space.release_pages()


def timed_load(order: link.ImageLoad, fds: Sequence[int]) -> tuple[LoadedImage, float]:
    """`load`, and how many milliseconds it took."""
    start = time.perf_counter()
    image = load(order, fds)
    return image, (time.perf_counter() - start) * 1e3


def _properties(meta: GraphMeta) -> dict[str, str]:
    chosen = {name: meta.config[name] for name in _PROPERTIES if name in meta.config}
    if chosen.get("INFERENCE_NUM_THREADS") == "0":
        del chosen["INFERENCE_NUM_THREADS"]  # 0 means all, which is OpenVINO's default
    threads = int(chosen.get("INFERENCE_NUM_THREADS", len(os.sched_getaffinity(0))))
    # each stream takes its part of the threads, also while it is the only one that works
    streams = min(_MOST_STREAMS, threads) if meta.config.get("PERFORMANCE_HINT") == "THROUGHPUT" else 1
    return chosen | {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": str(streams)}


def type_of(argument: ArgumentMeta) -> ov.Type:
    """Its element type."""
    element_type: ov.Type = getattr(ov.Type, argument.element_type)
    return element_type
