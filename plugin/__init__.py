"""The OpenVINO way of working on the emulated NPU: the names, argument orders and types of `openvino`.

>>> from softnpu.plugin import Core
>>> compiled = Core().compile_model("model.xml", "NPU")
>>> results = compiled({"input": array})
"""

from softnpu.plugin.async_infer_queue import AsyncInferQueue
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.core import Core
from softnpu.plugin.errors import (
    CompileError,
    DeviceLostError,
    InferCancelled,
    InferError,
    InputError,
    ModelError,
    NpuError,
    PropertyError,
)
from softnpu.plugin.infer_request import InferRequest
from softnpu.plugin.results import Results

__all__ = [
    "AsyncInferQueue",
    "CompileError",
    "CompiledModel",
    "Core",
    "DeviceLostError",
    "InferCancelled",
    "InferError",
    "InferRequest",
    "InputError",
    "ModelError",
    "NpuError",
    "PropertyError",
    "Results",
]
