"""Twins: copies of small images, compiled through OpenVINO's C interface to run without Python.

A request of the Python binding cannot be run from C++, and neither interface accepts the other's compiled
model. So an image with short inferences is exported and imported again, in a separate thread, and its twin is
used once both have computed the same bits from the same inputs. An image with many weights gets no twin: the
weights would be in memory twice, and Python is a small part of its run time.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import queue
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.executor import LoadedImage, properties_of, type_of

log = logging.getLogger(__name__)

MAX_WEIGHTS = 8 << 20
"""Bytes of constants of the largest image eligible for a twin."""
_ALIGNMENT = 64


class _Shape(ctypes.Structure):
    _fields_ = (("rank", ctypes.c_int64), ("dims", ctypes.POINTER(ctypes.c_int64)))


class TwinError(Exception):
    """OpenVINO's C interface returned an error."""


class _OpenVino:
    """The functions of `libopenvino_c.so` beside the Python binding, and its cores by properties."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._cores: dict[tuple[tuple[str, str], ...], ctypes.c_void_p] = {}
        self.infer: int = ctypes.cast(library.ov_infer_request_infer, ctypes.c_void_p).value or 0
        for name in ("ov_infer_request_free", "ov_compiled_model_free", "ov_tensor_free"):
            getattr(library, name).argtypes = (ctypes.c_void_p,)
            getattr(library, name).restype = None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises `TwinError`."""
        status = int(getattr(self._library, name)(*arguments))
        if status:
            raise TwinError(f"{name}: status {status}")

    def free(self, name: str, handle: ctypes.c_void_p) -> None:
        getattr(self._library, name)(handle)

    def core(self, properties: dict[str, str]) -> ctypes.c_void_p:
        """Return the core whose CPU device has these properties."""
        key = tuple(sorted(properties.items()))
        if key not in self._cores:
            core = ctypes.c_void_p()
            self.call("ov_core_create", ctypes.byref(core))
            for name, value in key:
                self.call("ov_core_set_property", core, b"CPU", name.encode(), value.encode())
            self._cores[key] = core
        return self._cores[key]


@functools.cache
def openvino() -> _OpenVino | None:
    """Return OpenVINO's C interface; None if not installed."""
    folder = Path(ov.__file__).parent / "libs"
    path = next(iter(sorted(folder.glob("libopenvino_c.so*"))), None)
    if path is None:
        log.info("no libopenvino_c.so in %s: short inferences run through Python, slower", folder)
        return None
    try:
        return _OpenVino(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        log.warning("%s cannot be used: %s", path, error)
        return None


class TwinRequest:
    """A request of a twin on given memory; `handle` is what `infer` takes.

    `exported` is what the twin was imported from: OpenVINO uses the constants in place.
    """

    __slots__ = ("__weakref__", "_exported", "_views", "handle")

    def __init__(
        self,
        interface: _OpenVino,
        compiled: ctypes.c_void_p,
        exported: bytes,
        views: Sequence[Bytes],
        inputs: int,
    ) -> None:
        request = ctypes.c_void_p()
        interface.call("ov_compiled_model_create_infer_request", compiled, ctypes.byref(request))
        weakref.finalize(self, interface.free, "ov_infer_request_free", request).atexit = False
        self.handle = request
        self._views, self._exported = views, exported
        for index, view in enumerate(views):
            kind, position = ("input", index) if index < inputs else ("output", index - inputs)
            self._bind(interface, compiled, view, kind, position)

    def _bind(
        self, interface: _OpenVino, compiled: ctypes.c_void_p, view: Bytes, kind: str, position: int
    ) -> None:
        port, shape, element = ctypes.c_void_p(), _Shape(), ctypes.c_int()
        at = ctypes.c_size_t(position)
        interface.call(f"ov_compiled_model_{kind}_by_index", compiled, at, ctypes.byref(port))
        tensor = ctypes.c_void_p()
        try:
            interface.call("ov_const_port_get_shape", port, ctypes.byref(shape))
            interface.call("ov_port_get_element_type", port, ctypes.byref(element))
            memory = ctypes.c_void_p(view.ctypes.data)
            interface.call("ov_tensor_create_from_host_ptr", element, shape, memory, ctypes.byref(tensor))
            size = ctypes.c_size_t()
            interface.call("ov_tensor_get_byte_size", tensor, ctypes.byref(size))
            if size.value != view.nbytes:
                raise TwinError(f"{kind} {position}: {size.value} bytes, bound to {view.nbytes}")
            interface.call(f"ov_infer_request_set_{kind}_tensor_by_index", self.handle, at, tensor)
        finally:
            if tensor:
                interface.free("ov_tensor_free", tensor)
            interface.call("ov_shape_free", ctypes.byref(shape))
            interface.free("ov_output_const_port_free", port)


class Twin:
    """The twin of an image."""

    def __init__(self, interface: _OpenVino, image: LoadedImage) -> None:
        self._exported: bytes = image.compiled.export_model().getvalue()
        core = interface.core(properties_of(image.meta))
        self._interface, self._compiled = interface, ctypes.c_void_p()
        self._inputs = len(image.meta.inputs)
        interface.call(
            "ov_core_import_model",
            core,
            self._exported,
            ctypes.c_size_t(len(self._exported)),
            b"CPU",
            ctypes.byref(self._compiled),
        )
        weakref.finalize(self, interface.free, "ov_compiled_model_free", self._compiled).atexit = False

    def request(self, views: Sequence[Bytes]) -> TwinRequest:
        """Return a request on this memory, one view per argument. Raises `TwinError`."""
        return TwinRequest(self._interface, self._compiled, self._exported, views, self._inputs)

    def infer(self, request: TwinRequest) -> None:
        """Run one inference. Raises `TwinError`."""
        self._interface.call("ov_infer_request_infer", request.handle)


def twin_of(image: LoadedImage) -> Twin | None:
    """Return the twin of an image; None while there is none."""
    return image.twin if isinstance(image.twin, Twin) else None


def may_have_one(image: LoadedImage) -> bool:
    """Whether an image is eligible for a twin."""
    meta, properties = image.meta, properties_of(image.meta)
    return (
        image.weights_size <= MAX_WEIGHTS
        and image.streams == 1
        and not image.has_layers
        and not image.computes_sizes
        and not image.unbound
        and not image.origins
        and meta.precision == properties.get("INFERENCE_PRECISION_HINT") == "f32"
        and not any(argument.is_dynamic or argument.shape_of >= 0 for argument in meta.arguments)
        and all(argument.byte_size for argument in meta.arguments)
        and cpu_cache.fits(image.compiled, meta)
    )


class TwinMaker:
    """Makes twins one after the other, in a thread that ends when idle."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[LoadedImage, list[bytes]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def ask(self, image: LoadedImage, inputs: list[bytes]) -> None:
        """Request the twin of an image, if eligible; `image.twin` is set once the twin is verified.

        `inputs`: values from a client's inference, used for the verification.
        """
        image.twin_asked = True
        if openvino() is None or not may_have_one(image):
            return
        with self._lock:
            self._jobs.put((image, inputs))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="twins", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._jobs.empty():
                    self._running = False
                    return
                image, inputs = self._jobs.get()
            with memory_limit.lifted():
                _make(image, inputs)
            del image


def _make(image: LoadedImage, inputs: list[bytes]) -> None:
    interface = openvino()
    assert interface is not None
    try:
        twin = Twin(interface, image)
        views = [*map(_aligned_copy, inputs), *(_empty(each.byte_size) for each in image.meta.outputs)]
        twin.infer(twin.request(views))
        expected = _expected(image, views)
    except (TwinError, RuntimeError) as error:
        log.warning("'%s' runs through Python: %s", image.meta.name, openvino_errors.reason(error))
        return
    computed = [view.tobytes() for view in views[len(inputs) :]]
    if computed != expected:
        log.warning("'%s' runs through Python: its twin computes other bits", image.meta.name)
        return
    image.twin = twin
    log.info("'%s' has a twin: its inferences run in C++", image.meta.name)


def _expected(image: LoadedImage, views: Sequence[Bytes]) -> list[bytes]:
    """Return what the image itself computes from the inputs among `views`."""
    request = image.compiled.create_infer_request()
    results = []
    inputs = len(image.meta.inputs)
    for index, (argument, view) in enumerate(zip(image.meta.arguments, views, strict=True)):
        memory = view if argument.input else _empty(argument.byte_size)
        tensor = ov.Tensor(memory, ov.Shape(argument.shape), type_of(argument))
        if argument.input:
            request.set_input_tensor(index, tensor)
        else:
            request.set_output_tensor(index - inputs, tensor)
            results.append(memory)
    request.infer(share_outputs=True)
    return [memory.tobytes() for memory in results]


def _empty(size: int) -> Bytes:
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def _aligned_copy(data: bytes) -> Bytes:
    memory = _empty(len(data))
    memory[:] = np.frombuffer(data, np.uint8)
    return memory
