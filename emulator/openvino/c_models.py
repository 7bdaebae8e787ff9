"""C models: copies of small images, compiled through OpenVINO's C interface to run without Python.

A request of the Python binding cannot be run from C++, and neither interface accepts the other's compiled
model. So an image with short inferences is exported and imported again: see `c_model_maker`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino.runtime import properties_of

log = logging.getLogger(__name__)


class _Shape(ctypes.Structure):
    _fields_ = (("rank", ctypes.c_int64), ("dims", ctypes.POINTER(ctypes.c_int64)))


class CModelError(Exception):
    """OpenVINO's C interface returned an error."""


class OpenVino:
    """The functions of `libopenvino_c.so` beside the Python binding, and its cores by properties."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._cores: dict[tuple[tuple[str, str], ...], ctypes.c_void_p] = {}
        self.infer: int = ctypes.cast(library.ov_infer_request_infer, ctypes.c_void_p).value or 0
        for name in ("ov_infer_request_free", "ov_compiled_model_free", "ov_tensor_free"):
            getattr(library, name).argtypes = (ctypes.c_void_p,)
            getattr(library, name).restype = None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises `CModelError`."""
        status = int(getattr(self._library, name)(*arguments))
        if status:
            raise CModelError(f"{name}: status {status}")

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
def openvino() -> OpenVino | None:
    """Return OpenVINO's C interface; None if not installed."""
    folder = Path(ov.__file__).parent / "libs"
    path = next(iter(sorted(folder.glob("libopenvino_c.so*"))), None)
    if path is None:
        log.info("no libopenvino_c.so in %s: short inferences run through Python, slower", folder)
        return None
    try:
        return OpenVino(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        log.warning("%s cannot be used: %s", path, error)
        return None


class CModelRequest:
    """A request of a C model on given memory; `handle` is what `infer` takes.

    `exported` is what the C model was imported from: OpenVINO uses the constants in place.
    """

    __slots__ = ("__weakref__", "_exported", "_views", "handle")

    def __init__(
        self,
        interface: OpenVino,
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

    def is_of(self, c_model: CModel) -> bool:
        """Whether it is a request of this C model."""
        return self._exported is c_model.exported

    def _bind(
        self, interface: OpenVino, compiled: ctypes.c_void_p, view: Bytes, kind: str, position: int
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
                raise CModelError(f"{kind} {position}: {size.value} bytes, bound to {view.nbytes}")
            interface.call(f"ov_infer_request_set_{kind}_tensor_by_index", self.handle, at, tensor)
        finally:
            if tensor:
                interface.free("ov_tensor_free", tensor)
            interface.call("ov_shape_free", ctypes.byref(shape))
            interface.free("ov_output_const_port_free", port)


class CModel:
    """The C model of an image."""

    def __init__(self, interface: OpenVino, compiled: ov.CompiledModel, meta: GraphMeta) -> None:
        self.exported: bytes = compiled.export_model().getvalue()
        core = interface.core(properties_of(meta))
        self._interface, self._compiled = interface, ctypes.c_void_p()
        self._inputs = len(meta.inputs)
        interface.call(
            "ov_core_import_model",
            core,
            self.exported,
            ctypes.c_size_t(len(self.exported)),
            b"CPU",
            ctypes.byref(self._compiled),
        )
        weakref.finalize(self, interface.free, "ov_compiled_model_free", self._compiled).atexit = False

    def request(self, views: Sequence[Bytes]) -> CModelRequest:
        """Return a request on this memory, one view per argument. Raises `CModelError`."""
        return CModelRequest(self._interface, self._compiled, self.exported, views, self._inputs)

    def infer(self, request: CModelRequest) -> None:
        """Run one inference. Raises `CModelError`."""
        self._interface.call("ov_infer_request_infer", request.handle)
