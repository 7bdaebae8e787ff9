"""`test_core.py`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from tests.plugin.api.table import IMAGE, Side, relu


def _files(side: Side) -> tuple[Path, Path]:
    xml = side.folder / f"{side.device}.xml"
    openvino.serialize(relu(), xml, xml.with_suffix(".bin"))
    return xml, xml.with_suffix(".bin")


def _is_model(side: Side, *arguments: Any, **more: Any) -> bool:
    return isinstance(side.ov.Core().read_model(*arguments, **more), side.ov.Model)


def compact_api_xml(side: Side) -> Any:
    compiled = side.ov.compile_model(relu(), side.device)
    return isinstance(compiled, side.ov.CompiledModel), compiled.infer_new_request({"data": IMAGE})[0]


def compact_api_wrong_path(side: Side) -> Any:
    class Named:
        def __str__(self) -> str:
            return "test class"

    side.ov.compile_model(Named(), side.device)


def core_class(side: Side) -> Any:
    return side.request(relu).infer({"data": side.ov.Tensor(IMAGE)})[0]


def compile_model(side: Side) -> Any:
    core = side.ov.Core()
    return isinstance(core.compile_model(core.read_model(*_files(side)), side.device), side.ov.CompiledModel)


def compact_api(side: Side) -> Any:
    hints = side.ov.properties.hint
    configs = (
        None,
        {hints.performance_mode(): hints.PerformanceMode.THROUGHPUT},
        {hints.execution_mode: hints.ExecutionMode.PERFORMANCE},
    )
    return [
        isinstance(side.ov.compile_model(model, side.device, config), side.ov.CompiledModel)
        for model in (relu(), _files(side)[0])
        for config in configs
    ]


def read_model_from_ir(side: Side) -> Any:
    xml, weights = map(str, _files(side))
    return _is_model(side, model=xml, weights=weights), _is_model(side, model=xml)


def read_model_from_ir_with_user_config(side: Side) -> Any:
    xml, weights = map(str, _files(side))
    core, cache = side.ov.Core(), side.folder / f"{side.device} cache"
    before = core.get_property("CACHE_DIR")
    core.read_model(xml, weights, config={"CACHE_DIR": str(cache)})
    return before == core.get_property("CACHE_DIR"), cache.exists()


def read_model_from_tensor(side: Side) -> Any:
    xml, weights = _files(side)
    np.ones(10, np.int8).tofile(weights)
    return _is_model(side, model=xml.read_text(), weights=side.ov.tensor_from_file(str(weights)))


def read_model_with_wrong_input(side: Side) -> Any:
    side.ov.Core().read_model(model=3, weights=3)


def read_model_as_path(side: Side) -> Any:
    xml, weights = _files(side)
    given = ((xml, weights), (str(xml), weights), (xml,))
    return [_is_model(side, *each) for each in given]


def read_model_as_path_with_user_config(side: Side) -> Any:
    return _is_model(side, *_files(side), config={"CACHE_DIR": str(side.folder / f"{side.device} path")})


def read_model_from_buffer(side: Side) -> Any:
    xml, weights = _files(side)
    return _is_model(side, model=xml.read_bytes(), weights=weights.read_bytes())


def read_model_from_bytesio(side: Side) -> Any:
    xml, weights = (io.BytesIO(path.read_bytes()) for path in _files(side))
    return _is_model(side, model=xml, weights=weights)


def model_from_buffer_valid(side: Side) -> Any:
    xml, weights = _files(side)
    model = side.ov.Core().read_model(model=xml.read_bytes(), weights=weights.read_bytes())
    return [(each.get_type_name(), each.friendly_name) for each in model.get_ordered_ops()]


def read_model_from_buffer_no_weights(side: Side) -> Any:
    return _is_model(side, model=_files(side)[0].read_bytes())


def get_version(side: Side) -> Any:
    version = side.ov.Core().get_versions(side.device)[side.device]
    fields = ("major", "minor", "patch", "description", "build_number")
    return [hasattr(version, name) for name in fields]


def available_devices(side: Side) -> Any:
    core = side.ov.Core()
    return side.device in core.available_devices, side.device in core.get_available_devices()


def get_property(side: Side) -> Any:
    props = side.ov.properties
    return props.enable_profiling in side.ov.Core().get_property(side.device, props.supported_properties())


def get_property_list_of_str(side: Side) -> Any:
    values = side.ov.Core().get_property(side.device, side.ov.properties.device.capabilities)
    return type(values), {type(value) for value in values} == {str}


def get_property_tuple_of_two_ints(side: Side) -> Any:
    values = side.ov.Core().get_property(side.device, side.ov.properties.range_for_streams)
    return type(values), [type(value) for value in values]


def get_property_tuple_of_three_ints(side: Side) -> Any:
    values = side.ov.Core().get_property(side.device, side.ov.properties.range_for_async_infer_requests)
    return type(values), [type(value) for value in values]


def get_property_str(side: Side) -> Any:
    return type(side.ov.Core().get_property(side.device, side.ov.properties.device.full_name))


def query_model(side: Side) -> Any:
    model = relu()
    supported = side.ov.Core().query_model(model=model, device_name=side.device)
    names = {operation.friendly_name for operation in model.get_ordered_ops()}
    return set(supported) <= names, set(supported.values()) == {side.device}


def unload_plugin(side: Side) -> Any:
    core = side.ov.Core()
    core.get_versions(side.device)
    side.clear()  # they end with the plugin here
    return core.unload_plugin(side.device)


def add_extension(side: Side) -> Any:
    core = side.ov.Core()
    core.add_extension([])
    return isinstance(relu(), side.ov.Model)


def infer_new_request_return_type(side: Side) -> Any:
    array = side.compiled(relu).infer_new_request({"data": IMAGE})[0]
    return type(array), array.itemsize, array.shape, array.dtype == "float32", array.nbytes


def text_of_objects(side: Side) -> Any:
    objects = (side.compiled(relu), side.request(relu), side.ov.AsyncInferQueue(side.compiled(relu), 2))
    return [repr(each).replace("ConstOutput", "Output") for each in objects], repr(side.ov.Core())[:25]
