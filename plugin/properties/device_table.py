"""Read-only properties of the device and the plugin; `readers` has their values."""

from __future__ import annotations

from typing import Any

from openvino._pyopenvino.properties.device import PCIInfo
from openvino.properties import CompatibilityCheck
from openvino.properties.device import Type as DeviceType

from softnpu.plugin.properties.kinds import ReadOnly
from softnpu.plugin.properties.record import Access, Level, Property, Use


def _reported(name: str, type: Any, doc: str, level: Level = Level.CORE, cached: bool = False) -> Property:
    return Property(
        name=name,
        kind=ReadOnly(type),
        doc=doc,
        use=Use.REPORTED,
        access=Access.RO,
        level=level,
        cached=cached,
    )


DEVICE_PROPERTIES = (
    _reported("SUPPORTED_PROPERTIES", dict, "every property by name, and RO or RW", Level.BOTH),
    _reported("SUPPORTED_METRICS", list, "the names of SUPPORTED_PROPERTIES that are RO"),
    _reported("SUPPORTED_CONFIG_KEYS", list, "the names of SUPPORTED_PROPERTIES that are RW"),
    _reported("NUM_STREAMS", int, "always 1; a model has one queue", Level.BOTH),
    _reported(
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
        int,
        "by the table for the platform and PERFORMANCE_HINT, at most PERFORMANCE_HINT_NUM_REQUESTS if that is"
        " set; of a model with NPU_MEASURE_OPTIMAL_REQUESTS: as measured",
        Level.BOTH,
    ),
    _reported("RANGE_FOR_ASYNC_INFER_REQUESTS", tuple, "(1, 8, 1): lowest, highest, step. Not a limit"),
    _reported("RANGE_FOR_STREAMS", tuple, "(1, 1): lowest, highest. Streams are not used"),
    _reported(
        "AVAILABLE_DEVICES",
        list,
        "what can follow `NPU.`: the platform of the only device, or the numbers of several",
    ),
    _reported("DEVICE_UUID", str, "the device's identity, 32 hexadecimal digits"),
    _reported("DEVICE_ARCHITECTURE", str, "the emulated platform, such as 4000", cached=True),
    _reported("FULL_DEVICE_NAME", str, "the name that the real device of the platform has"),
    _reported("DEVICE_TYPE", DeviceType, "INTEGRATED, as the real device"),
    _reported(
        "DEVICE_GOPS",
        dict,
        "billions of operations a second by element type, of the real device: clock, tiles and width of the"
        " platform. What is reached here depends on the host",
    ),
    _reported("DEVICE_PCI_INFO", PCIInfo, "where the real device sits; the bus is the number of the device"),
    _reported(
        "NPU_DEVICE_ALLOC_MEM_SIZE",
        int,
        "bytes of device memory that this process has allocated, with the blobs and weights of its models"
        " that are loaded, equal ones once",
    ),
    _reported("NPU_DEVICE_TOTAL_MEM_SIZE", int, "bytes of device memory in all"),
    _reported("NPU_DRIVER_VERSION", int, "version of the user-mode driver", cached=True),
    _reported(
        "NPU_COMPILER_VERSION",
        int,
        "version of the driver's compiler, major in the upper 16 bits",
        cached=True,
    ),
    _reported(
        "OPTIMIZATION_CAPABILITIES",
        list,
        "the precisions in which the device computes: FP32 and FP16, and BF16, INT8 if the host's processor"
        " has them",
    ),
    _reported("EXECUTION_DEVICES", str, "the name of the device", Level.BOTH),
    _reported(
        "LOADED_FROM_CACHE", bool, "whether the model came from a cache of compiled models", Level.MODEL
    ),
    _reported(
        "RUNTIME_REQUIREMENTS",
        str,
        "what the model needs to run, as `platform=4000;blob=1.0;precision=f32;opset=13`; also in every"
        " exported file",
        Level.MODEL,
    ),
    _reported(
        "COMPATIBILITY_CHECK",
        CompatibilityCheck,
        "with the argument RUNTIME_REQUIREMENTS: whether a model that needs this can run on the device."
        " NOT_APPLICABLE without it. `Core.check_compatibility` returns the reason",
    ),
    _reported("NETWORK_NAME", str, "the name of the model", Level.MODEL),
    _reported(
        "NPU_MEASURED_THROUGHPUT",
        dict,
        "inferences a second with 1, 2, 4 and 8 infer requests in flight. The first question measures, for at"
        " most 2 s and one inference; fewer counts if the model is slow. Not in OpenVINO",
        Level.MODEL,
    ),
)
