"""Computation with OpenVINO's CPU runtime: load images, bind client memory, run and cancel inferences."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
import openvino as ov

from softnpu.emulator.arithmetic import settings as arithmetic
from softnpu.emulator.blob.constant_digests import check_constants
from softnpu.emulator.blob.container import ArgumentMeta, BlobReader, GraphMeta, Section
from softnpu.emulator.blob.weight_files import file_identities
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement, offsets_in_space, with_actual_offsets
from softnpu.emulator.common import model_bodies
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.profiling import LayerRecord
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.defects import (
    empty_tensors,
    quantised_subgraphs,
    remedies,
    rounded_states,
    shared_tensors,
)
from softnpu.emulator.openvino.defects.defect import Build
from softnpu.emulator.openvino.fused_states.states import FusedStates
from softnpu.emulator.openvino.layers import layer_records
from softnpu.emulator.openvino.modelled_time import Modelled, ModelledTime, host_times
from softnpu.emulator.openvino.weights import weight_pages
from softnpu.emulator.openvino.weights.weight_files import GuardedWeights, guarded

log = logging.getLogger(__name__)

_PRECISION = "INFERENCE_PRECISION_HINT"
_PROPERTIES = (
    _PRECISION,
    "EXECUTION_MODE_HINT",
    "INFERENCE_NUM_THREADS",
    "PERF_COUNT",
)
_POLL_MS = 50
_OVERLAP_POLL_MS = 1
_LET_GO_STEPS, _LET_GO_STEP_MS = 20, 500
_MAX_STREAMS = 4
_MOST_EMPTY = 8  # sets of zero dimensions, before a model is compiled for all of them
_SHORT_S = 500e-6
_core: ov.Core | None = None
_core_lock = threading.Lock()


def core() -> ov.Core:
    """Return the OpenVINO core of this process."""
    global _core
    with _core_lock:
        if _core is None:
            _core = ov.Core()
    return _core


def load_device() -> None:
    """Load OpenVINO's CPU device ahead of the first image."""
    with contextlib.suppress(RuntimeError):  # the first image reports it
        core().get_property("CPU", "FULL_DEVICE_NAME")


class Binding:
    """An infer request whose inputs and outputs are client memory.

    Outputs whose tensor cannot be set (`shared_tensors`, `LoadedImage.unbound`) are copied after each
    inference; `count_copied` receives the bytes.
    """

    __slots__ = (
        "_apart",
        "_copies",
        "_count_copied",
        "_is_short",
        "_poll_ms",
        "_request",
        "_started",
        "_unbound",
        "views",
    )

    def __init__(
        self, image: LoadedImage, views: Sequence[Bytes], count_copied: Callable[[int], None]
    ) -> None:
        self._start(image, views, count_copied)
        inputs = len(image.meta.inputs)
        for index, (argument, view) in enumerate(zip(image.meta.arguments, views, strict=True)):
            position = index if argument.input else index - inputs
            origin = None if argument.input else image.origins.get(position)
            if origin is None:
                self._set_tensor(position, argument, view)
            else:
                self._copy(view, views[origin.position + (0 if origin.input else inputs)])

    def _start(self, image: LoadedImage, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> None:
        self.views = views  # keeps the mappings alive as long as the request may touch them
        self._request = image.compiled.create_infer_request()
        self._is_short = self._started = False
        self._poll_ms = _POLL_MS
        self._count_copied = count_copied
        self._copies: list[tuple[Bytes, Callable[[], Bytes]]] = []
        self._unbound, self._apart = image.unbound, image.apart

    def poll_often(self) -> None:
        """Make `run` poll often, so that other inferences can start concurrently."""
        self._poll_ms = _OVERLAP_POLL_MS

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
    def short(self) -> bool:
        """Whether an inference is too short to be worth another thread."""
        return self._is_short

    @property
    def copies(self) -> bool:
        """Whether outputs are copied after an inference."""
        return bool(self._copies)

    def _set_tensor(self, position: int, argument: ArgumentMeta, view: Bytes) -> None:
        """Make an input or output use `view`."""
        shape = (1, *argument.shape) if position in self._apart and not argument.input else argument.shape
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
        if self._is_short:
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
        self._is_short = not started and time.perf_counter() - start < _SHORT_S
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
                _end_held("an inference that was cancelled does not end")
            self._request.wait()


def _end_held(why: str) -> NoReturn:
    """End this engine without cleanup while other threads may still write client memory."""
    log.critical("%s: the engine ends", why)
    os._exit(link.EXIT_HELD)


class LoadedImage:
    """A compiled model on the device, shared by all graphs of this content.

    Constants are used in place: their sources and the blob stay mapped as long as the image lives. `check`
    compares them with the digests in the blob first, and names mismatches. `streams`: number of inferences at
    once, each with its share of the threads. `key`: its key in `cache`, empty if it is not cached;
    `lacking`: the same, empty if it was loaded from there. `computes_sizes`: whether sizes within the model
    depend on the values or dynamic shapes of its inputs.
    """

    def __init__(
        self,
        blob: memoryview,
        placement: Placement | None,
        space: WeightSpace,
        modelled: Modelled,
        check: bool = False,
        cache: CpuCache | None = None,
    ) -> None:
        reader = BlobReader(blob)
        self.meta = reader.metadata()
        reference = reader.weights_reference()
        actual = offsets_in_space(reference, placement, space.layout, space.embedded)
        if check and reference is not None:
            outside = [actual[constant.offset] for constant in reference.outside]
            check_constants(reference, outside, space, f"model '{self.meta.name}'", lambda _: None)
        self.compilations = 0
        self.weights_size = 0 if reference is None else reference.size
        self.twin: object | None = None  # see `twins`
        self.twin_asked = False
        self.key = self.lacking = ""
        self.weights: GuardedWeights | None = None
        self.has_layers = self.is_unfused = self.computes_sizes = False
        self.modelled: ModelledTime | None = None
        self.fused_states: FusedStates | None = None
        self._model: ov.Model | None = None
        self._is_spoiled = False
        traced = trace.active is not None and trace.active.layers  # cached images have no layer profile
        if cache is None or traced or not self._find(reader, cache):
            xml = with_actual_offsets(bytes(reader.read(Section.IR)), actual)
            self._read(xml, space, modelled)
        self.apart = rounded_states.positions(self.meta, self.compiled)
        """Positions of outputs that `rounded_states` has changed."""
        self.unbound = frozenset(_other_shapes(self.meta, self.compiled)) - self.apart
        """Positions of outputs whose port changed shape during compilation."""
        self.streams = int(self.compiled.get_property("NUM_STREAMS"))
        self.origins = shared_tensors.origins(self.compiled)

    def _find(self, reader: BlobReader, cache: CpuCache) -> bool:
        """Take the image from the cache; return whether it was there."""
        properties = properties_of(self.meta)
        self.key = cpu_cache.key_of(reader, self.meta, properties)
        if not self.key:
            return False
        self._kept = cache.find(core(), self.key, self.meta, properties)
        if self._kept is None:
            self.lacking = self.key
            return False
        self.compiled = self._kept.compiled
        return True

    def _read(self, xml: bytes, space: WeightSpace, modelled: Modelled) -> None:
        """Read and compile the model."""
        self._weights = np.frombuffer(space.view, dtype=np.uint8)
        self._space = space
        model = core().read_model(xml, ov.Tensor(self._weights, shared_memory=True))
        self.modelled = modelled(model, self.meta)
        self.computes_sizes = any(each.is_dynamic() for each in (model, *model_bodies.all_bodies(model)))
        if self.computes_sizes:
            self.key = self.lacking = ""
        remedies.correct(model)
        remedies.guard(model)
        if self.meta.precision == arithmetic.PRECISION:
            self._round(model)
        remedies.settle(model, Build(core(), self.meta, properties_of(self.meta)))
        self._compile_with_states(model)
        self._model = model if self.computes_sizes or model.is_dynamic() else None
        self._empty: set[empty_tensors.Empty] = set()
        self._takes_nothing = False  # guarded for any set of zero dimensions
        self._is_behind = False  # `compiled` is older than `_model`

    def _compile_with_states(self, model: ov.Model) -> None:
        self._compile(model)
        if self.meta.dynamic_states:
            self.fused_states = FusedStates(model, self.compiled, self.meta.name)

    def renew(self) -> None:
        """Compile a model with dynamic dimensions again; requests made before must not be used.

        After a failed or cancelled inference OpenVINO's compiled model (2026.4) may permanently refuse valid
        shapes, or return results with the shapes of that inference, even in new requests. If compilation
        fails now, `mend` repeats it.
        """
        self._is_spoiled = self._model is not None
        with contextlib.suppress(RuntimeError, MemoryError):
            self.mend()

    def mend(self) -> None:
        """Retry a compilation that failed in `renew`. Raises `RuntimeError` or `MemoryError`."""
        if self._is_spoiled and self._model is not None:
            self._compile(self._model)
            self._is_spoiled = False

    def expect_empty(self, empty: empty_tensors.Empty) -> None:
        """Recompile the model if inputs with these dimensions at 0 require it.

        As after `renew`, earlier requests must not be used if `compilations` has changed.
        """
        if self._model is None or self._takes_nothing or empty in self._empty:
            return
        # a client may try all 2**n sets of dimensions
        is_last = len(self._empty) >= _MOST_EMPTY
        # a failed attempt may have guarded operations without compiling them
        was_behind, self._is_behind = self._is_behind, True
        if empty_tensors.guard(self._model, None if is_last else empty) or was_behind:
            self._compile_with_states(self._model)
        self._is_behind = False
        self._empty.add(empty)
        self._takes_nothing = is_last

    def _round(self, model: ov.Model) -> None:
        """Make `model` compute in f16, like the device."""
        from softnpu.emulator.arithmetic.rewriting import rewrite

        try:
            rewrite(model, arithmetic.Arithmetic.of(self.meta.config))
        except (LookupError, TypeError, AttributeError) as error:  # an operation unlike the known ones
            raise RuntimeError(f"it cannot be rewritten for f16: {error!r}") from error

    def _compile(self, model: ov.Model) -> None:
        properties = properties_of(self.meta)
        if trace.active is not None and trace.active.layers:
            properties["PERF_COUNT"] = "YES"
        self.has_layers = properties.get("PERF_COUNT") == "YES"
        with memory_limit.lifted(), weight_pages.releasing(self._space):
            try:
                compiled = core().compile_model(model, "CPU", properties)
            except RuntimeError:
                if properties["NUM_STREAMS"] == "1":
                    raise
                properties["NUM_STREAMS"] = "1"  # with several, some models fail that run with one
                compiled = core().compile_model(model, "CPU", properties)
            self.compiled, used = remedies.recompiled(core(), model, compiled, properties)
        if quantised_subgraphs.UNFUSED.items() <= used.items():
            self.is_unfused = True
            self.key = self.lacking = ""
        self.compilations += 1


def _other_shapes(meta: GraphMeta, compiled: ov.CompiledModel) -> Iterator[int]:
    variables = meta.dynamic_states
    outputs = [
        argument
        for index, argument in enumerate(meta.arguments)
        if not argument.input and argument.shape_of < 0 and index not in variables
    ]
    for position, (argument, port) in enumerate(zip(outputs, compiled.outputs, strict=True)):
        if not argument.is_dynamic and port.partial_shape != ov.PartialShape(list(argument.shape)):
            yield position


def load(
    message: link.ImageLoad,
    fds: Sequence[int],
    modelled: Modelled = host_times,
    cache: CpuCache | None = None,
) -> LoadedImage:
    """Load an image from its descriptors, which may be closed afterwards. Raises `Refused`."""
    if not fds:
        raise refuse(
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            "graph",
            found="a daemon without free descriptors",
            expected="descriptors for its blob and weights",
            hint="raise the descriptor limit of the daemon",
        )
    try:
        blob = memoryview(mmap.mmap(fds[0], message.blob_length, prot=mmap.PROT_READ))
        section = BlobReader(blob).extent(Section.WEIGHTS)
        sources = fds[len(fds) - len(message.weights) :]
        space = WeightSpace(
            message.weights, sources, "graph", None if section is None else (fds[0], *section)
        )
        placement = None
        if message.placement_length:
            placement = Placement.decode(os.pread(fds[1], message.placement_length, 0))
        weights = guarded(space, sources)
        check = message.check or file_identities(sources) != message.files
        try:
            image = LoadedImage(blob, placement, space, modelled, check, cache)
        finally:
            if weights is not None:  # with truncated weights OpenVINO's message is meaningless
                weights.check(BlobReader(blob).metadata().name)
        image.weights = weights
        return image
    except (RuntimeError, OSError, ValueError) as error:
        raise Refused(
            ErrorInfo(
                result=ZeResult.ERROR_MODULE_BUILD_FAILURE,
                object="graph",
                found=f"the engine cannot load it: {openvino_errors.reason(error)}",
                expected="a model that the device runs",
            )
        ) from error


def timed_load(
    message: link.ImageLoad, fds: Sequence[int], modelled: Modelled, cache: CpuCache | None
) -> tuple[LoadedImage, float]:
    """Load an image; return it and its load time in milliseconds."""
    start = time.perf_counter()
    image = load(message, fds, modelled, cache)
    return image, (time.perf_counter() - start) * 1e3


def properties_of(meta: GraphMeta) -> dict[str, str]:
    """Return the properties with which OpenVINO's CPU device compiles an image."""
    chosen = {name: meta.config[name] for name in _PROPERTIES if name in meta.config}
    if meta.precision == arithmetic.PRECISION:
        chosen[_PRECISION] = "f32"  # rounded only where the device rounds
    if chosen.get("INFERENCE_NUM_THREADS") == "0":
        del chosen["INFERENCE_NUM_THREADS"]  # 0 means all, which is OpenVINO's default
    threads = int(chosen.get("INFERENCE_NUM_THREADS", len(os.sched_getaffinity(0))))
    # each stream has its share of the threads, even while the others are idle
    count = min(_MAX_STREAMS, threads) if meta.config.get("PERFORMANCE_HINT") == "THROUGHPUT" else 1
    if meta.dynamic_states:
        # 8 bits with EXECUTION_MODE_HINT=PERFORMANCE, and a state that is copied out and in would change
        chosen["KV_CACHE_PRECISION"] = chosen[_PRECISION]
    return chosen | remedies.properties() | {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": str(count)}


def type_of(argument: ArgumentMeta) -> ov.Type:
    """Return the element type of an argument."""
    element_type: ov.Type = getattr(ov.Type, argument.element_type)
    return element_type
