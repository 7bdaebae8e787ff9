"""OpenVINO's Python API on the emulated NPU: the names, argument orders and types of `openvino`.

>>> import softnpu.plugin as ov
>>> compiled = ov.Core().compile_model("model.xml", "NPU")
>>> results = compiled({"input": array})

Every public name of `openvino` is here. Device objects are the plugin's; everything else is OpenVINO's own.
"""

from softnpu.plugin.late_converter import openvino as _openvino

# isort: split
from softnpu.plugin import traced_calls as _traced_calls
from softnpu.plugin.async_infer_queue import AsyncInferQueue
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.core import Core, compile_model
from softnpu.plugin.errors import (
    BlobError,
    CompileError,
    DeviceLostError,
    InferCancelled,
    InferError,
    InputError,
    ModelError,
    NpuError,
    PropertyError,
)
from softnpu.plugin.facade import fall_back, share_submodules
from softnpu.plugin.remote.remote_context import RemoteContext
from softnpu.plugin.remote.remote_properties import FileDescriptor, MemType, TensorType
from softnpu.plugin.remote.remote_tensor import RemoteTensor
from softnpu.plugin.requests.infer_request import InferRequest
from softnpu.plugin.requests.results import Results
from softnpu.plugin.requests.states import VariableState

_traced_calls.register()
__getattr__, __dir__ = fall_back(__name__, _openvino)
share_submodules(__name__, _openvino)

__all__ = [
    "AsyncInferQueue",
    "BlobError",
    "CompileError",
    "CompiledModel",
    "Core",
    "DeviceLostError",
    "FileDescriptor",
    "InferCancelled",
    "InferError",
    "InferRequest",
    "InputError",
    "MemType",
    "ModelError",
    "NpuError",
    "PropertyError",
    "RemoteContext",
    "RemoteTensor",
    "Results",
    "TensorType",
    "VariableState",
    "compile_model",
]
