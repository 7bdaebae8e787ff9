"""`test_compiled_model.py`, and ports: `test_output_const_node.py`, `test_input_node.py`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import openvino

from tests.plugin.api.table import IMAGE, Side, concat, relu


def get_property(side: Side) -> Any:
    return side.compiled(relu).get_property(side.ov.properties.model_name)


def export_import(side: Side) -> Any:
    stream = side.compiled(relu).export_model()
    imported = side.ov.Core().import_model(stream, side.device)
    return imported.infer_new_request({"data": IMAGE})[imported.outputs[0]]


def export_import_advanced(side: Side) -> Any:
    stream = io.BytesIO()
    side.compiled(relu).export_model(stream)
    return side.ov.Core().import_model(stream, side.device).infer_new_request({"data": IMAGE})[0]


def export_import_via_file(side: Side) -> Any:
    stream = io.BytesIO()
    side.compiled(relu).export_model(stream)
    path = side.folder / f"{side.device}.blob"
    path.write_bytes(stream.getbuffer())
    return side.ov.Core().import_model(path.read_bytes(), side.device).infer_new_request({"data": IMAGE})[0]


def export_import_with_encryption(side: Side) -> Any:
    config = {"CACHE_ENCRYPTION_CALLBACKS": [_xor, _xor]}
    compiled = side.ov.Core().compile_model(relu(), side.device, config)
    stream = compiled.export_model()
    imported = side.ov.Core().import_model(stream, side.device, config)
    return imported.infer_new_request({"data": IMAGE})[0]


def encrypted_without_callbacks(side: Side) -> Any:
    config = {"CACHE_ENCRYPTION_CALLBACKS": [_xor, _xor]}
    stream = side.ov.Core().compile_model(relu(), side.device, config).export_model()
    side.ov.Core().import_model(stream, side.device)


def _xor(data: bytes) -> bytes:
    return bytes(byte ^ 0x5A for byte in data)


def get_input(side: Side) -> Any:
    compiled = side.compiled(relu)
    return [compiled.input(*key).get_node().friendly_name for key in ((0,), ("data",), ())]


def get_output(side: Side) -> Any:
    compiled = side.compiled(relu)
    return [compiled.output(*key).get_index() for key in ((0,), ())]


def input_set_friendly_name(side: Side) -> Any:
    node = side.ov.Core().compile_model(relu(), side.device).input("data").get_node()
    node.set_friendly_name("input_1")
    return node.friendly_name


def output_set_friendly_name(side: Side) -> Any:
    node = side.ov.Core().compile_model(relu(), side.device).output(0).get_node()
    node.set_friendly_name("output_1")
    return node.friendly_name


def outputs(side: Side) -> Any:
    return type(side.compiled(relu).outputs), len(side.compiled(relu).outputs)


def output_type(side: Side) -> Any:
    return side.compiled(relu).output(0).get_element_type().get_type_name()


def output_shape(side: Side) -> Any:
    return str(side.compiled(relu).output(0).get_shape())


def input_get_index(side: Side) -> Any:
    return side.compiled(relu).input(0).get_index()


def inputs(side: Side) -> Any:
    return type(side.compiled(relu).inputs), len(side.compiled(relu).inputs)


def inputs_get_friendly_name(side: Side) -> Any:
    return side.compiled(relu).inputs[0].get_node().friendly_name


def inputs_set_friendly_name(side: Side) -> Any:
    node = side.ov.Core().compile_model(relu(), side.device).inputs[0].get_node()
    node.set_friendly_name("input_0")
    return node.friendly_name


def infer_new_request_numpy(side: Side) -> Any:
    results = side.compiled(relu).infer_new_request({"data": IMAGE})
    return results[next(iter(results))]


def infer_new_request_tensor_numpy_copy(side: Side) -> Any:
    return side.compiled(relu).infer_new_request({"data": side.ov.Tensor(IMAGE)})[0]


def infer_tensor_numpy_shared_memory(side: Side) -> Any:
    tensor = side.ov.Tensor(np.ascontiguousarray(IMAGE), shared_memory=True)
    return side.compiled(relu).infer_new_request({"data": tensor})[0]


def infer_new_request_wrong_port_name(side: Side) -> Any:
    side.compiled(relu).infer_new_request({"_data_": side.ov.Tensor(IMAGE)})


def infer_tensor_wrong_input_data(side: Side) -> Any:
    side.compiled(relu).infer_new_request({0.0: side.ov.Tensor(IMAGE, shared_memory=True)})


def direct_infer(side: Side) -> Any:
    compiled, tensor = side.compiled(relu), side.ov.Tensor(IMAGE)
    return [compiled({"data": tensor}, share_inputs=share)[compiled.outputs[0]] for share in (True, False)]


def compiled_model_after_core_destroyed(side: Side) -> Any:
    core, model = side.ov.Core(), relu()
    compiled = core.compile_model(model, side.device)
    del core, model
    return compiled([np.full(list(port.shape), -1.5) for port in compiled.inputs])[0]


def compiled_model_from_buffer_in_memory(side: Side) -> Any:
    path = side.folder / f"{side.device} memory.xml"
    openvino.serialize(relu(), path, path.with_suffix(".bin"))
    given = {"model": path.read_text(), "weights": path.with_suffix(".bin").read_bytes()}
    return side.ov.Core().compile_model(device_name=side.device, **given)([IMAGE])[0]


def memory_release(side: Side) -> Any:
    compiled = side.ov.Core().compile_model(concat(), side.device)
    request = compiled.create_infer_request()
    port = compiled.inputs[0]
    tensor = side.ov.Tensor(port.get_element_type(), port.get_shape())
    tensor.data[:] = 3
    first = request.infer({0: tensor, 1: tensor})[0]
    compiled.release_memory()
    return first, request.infer({0: tensor, 1: tensor})[0]


def const_output(side: Side) -> Any:
    port = side.compiled(relu).input("data")
    return (
        *(port.get_index(), port.index, str(port.get_element_type()), str(port.element_type)),
        *(str(port.get_shape()), str(port.shape), str(port.get_partial_shape()), str(port.partial_shape)),
        *(port.get_names(), port.names, port.get_any_name(), port.any_name),
        type(port.get_target_inputs()),
    )


def input_of_node(side: Side) -> Any:
    port = side.compiled(relu).output(0).get_node().inputs()[0]
    return (
        *(type(port).__name__, port.get_index(), str(port.get_element_type()), str(port.get_shape())),
        *(str(port.get_partial_shape()), type(port.get_tensor()).__name__, type(port.get_rt_info()).__name__),
    )
