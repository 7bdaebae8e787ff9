"""Properties that tell of the device and of the plugin; how they are found is in `readers`."""

from __future__ import annotations

from typing import Any

from openvino._pyopenvino.properties.device import PCIInfo
from openvino.properties import CompatibilityCheck
from openvino.properties.device import Type as DeviceType

from softnpu.plugin.properties.kinds import Fact
from softnpu.plugin.properties.record import Access, Level, Property, Use


def _tells(name: str, type: Any, doc: str, level: Level = Level.CORE, cached: bool = False) -> Property:
    return Property(
        name=name, kind=Fact(type), doc=doc, use=Use.TELLS, access=Access.RO, level=level, cached=cached
    )


DEVICE_PROPERTIES = (
    _tells("SUPPORTED_PROPERTIES", dict, "every property by name, and RO or RW", Level.BOTH),
    _tells("SUPPORTED_METRICS", list, "the names of SUPPORTED_PROPERTIES that are RO"),
    _tells("SUPPORTED_CONFIG_KEYS", list, "the names of SUPPORTED_PROPERTIES that are RW"),
    _tells("NUM_STREAMS", int, "always 1; a model has one queue", Level.BOTH),
    _tells(
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
        int,
        "by the table for the platform and PERFORMANCE_HINT, at most PERFORMANCE_HINT_NUM_REQUESTS if that is"
        " set; of a model with NPU_MEASURE_OPTIMAL_REQUESTS: as measured",
        Level.BOTH,
    ),
    _tells("RANGE_FOR_ASYNC_INFER_REQUESTS", tuple, "(1, 8, 1): lowest, highest, step. Not a limit"),
    _tells("RANGE_FOR_STREAMS", tuple, "(1, 1): lowest, highest. Streams are not used"),
    _tells(
        "AVAILABLE_DEVICES",
        list,
        "what can follow `NPU.`: the platform of the only device, or the numbers of several",
    ),
    _tells("DEVICE_UUID", str, "the device's identity, 32 hexadecimal digits"),
    _tells("DEVICE_ARCHITECTURE", str, "the emulated platform, such as 4000", cached=True),
    _tells("FULL_DEVICE_NAME", str, "the name that the real device of the platform has"),
    _tells("DEVICE_TYPE", DeviceType, "INTEGRATED, as the real device"),
    _tells(
        "DEVICE_GOPS",
        dict,
        "billions of operations a second by element type, of the real device: clock, tiles and width of the"
        " platform. What is reached here depends on the host",
    ),
    _tells("DEVICE_PCI_INFO", PCIInfo, "where the real device sits; the bus is the number of the device"),
    _tells(
        "NPU_DEVICE_ALLOC_MEM_SIZE",
        int,
        "bytes of device memory that this process has asked for, with the blobs and weights of its models"
        " that are"
        " loaded, equal ones once",
    ),
    _tells("NPU_DEVICE_TOTAL_MEM_SIZE", int, "bytes of device memory in all"),
    _tells("NPU_DRIVER_VERSION", int, "version of the user-mode driver", cached=True),
    _tells(
        "NPU_COMPILER_VERSION",
        int,
        "version of the driver's compiler, major in the upper 16 bits",
        cached=True,
    ),
    _tells(
        "OPTIMIZATION_CAPABILITIES",
        list,
        "the precisions in which this host computes: FP32, and BF16, FP16, INT8 if its processor has them",
    ),
    _tells("EXECUTION_DEVICES", str, "the name of the device", Level.BOTH),
    _tells("LOADED_FROM_CACHE", bool, "whether the model came from a cache of compiled models", Level.MODEL),
    _tells(
        "RUNTIME_REQUIREMENTS",
        str,
        "what the model needs to run, as `platform=4000;blob=1.0;precision=f32;opset=13`; also in every"
        " exported"
        " file",
        Level.MODEL,
    ),
    _tells(
        "COMPATIBILITY_CHECK",
        CompatibilityCheck,
        "with the argument RUNTIME_REQUIREMENTS: whether a model that needs this can run on the device."
        " NOT_APPLICABLE without it. `Core.check_compatibility` tells the reason",
    ),
    _tells("NETWORK_NAME", str, "the name of the model", Level.MODEL),
    _tells(
        "NPU_MEASURED_THROUGHPUT",
        dict,
        "inferences a second with 1, 2, 4 and 8 infer requests in flight. The first question measures, for at"
        " most 2 s and one inference; fewer counts if the model is slow. Not in OpenVINO",
        Level.MODEL,
    ),
)
