"""Unmodified OpenVINO with models of every kind, including real ones: features and models.

The numbers are those of its CPU device, bit for bit where weights are constants.
"""

from __future__ import annotations

import pytest

from softnpu.tools.models.catalogue import lookup
from softnpu.tools.models.fetch import get
from tests.native.conftest import RunCases

HELPERS = """
def constant(seed, *shape):
    return op.constant(np.random.default_rng(seed).normal(0, 0.3, shape).astype(np.float32))
def parameter(shape, kind=np.float32):
    return op.parameter(shape, kind)
def values(port, batch=1):
    shape = [batch if dimension.is_dynamic else dimension.get_length() for dimension in port.partial_shape]
    kind = port.get_element_type().to_dtype()
    if "attention_mask" in port.get_names(): return np.ones(shape, kind)
    if kind == bool: return rng.integers(0, 2, shape).astype(bool)
    if np.issubdtype(kind, np.integer): return np.array(rng.integers(0, 50, shape)).astype(kind)
    return np.array(rng.random(shape) * 2 - 1).astype(kind)
def inputs_of(model, batch=1): return [values(port, batch) for port in model.inputs]
def reference_of(model):
    compiled = ov.Core().compile_model(model, "CPU", CPU)
    return lambda given: list(compiled(given).values())
def bytes_of(blob): return blob.getvalue() if hasattr(blob, "getvalue") else blob
"""

MODELS = {
    "LSTM": """
x, h, c = parameter([1, 7, 16]), parameter([1, 1, 8]), parameter([1, 1, 8])
lengths = op.constant(np.array([7], np.int64))
cell = op.lstm_sequence(
    x, h, c, lengths, constant(1, 1, 32, 16), constant(2, 1, 32, 8), constant(3, 1, 32), 8, "FORWARD"
)
model = ov.Model([op.result(cell.output(index)) for index in range(3)], [x, h, c], "lstm")
""",
    "GRU in both directions": """
x, h = parameter([2, 5, 16]), parameter([2, 2, 8])
lengths = op.constant(np.array([5, 3], np.int64))
cell = op.gru_sequence(
    x, h, lengths, constant(1, 2, 24, 16), constant(2, 2, 24, 8), constant(3, 2, 24), 8, "BIDIRECTIONAL"
)
model = ov.Model([op.result(cell.output(index)) for index in range(2)], [x, h], "gru")
""",
    "element types": """
given = [parameter([2, 3], kind) for kind in (np.int64, np.uint8, np.float16, bool, np.int8, np.float64)]
a, b, c, d, e, f = given
total = op.add(op.add(op.convert(a, "f32"), op.convert(b, "f32")), op.convert(c, "f32"))
chosen = op.select(d, total, op.constant(np.float32(0)))
results = [op.convert(total, "i64"), op.convert(total, "f16"), op.logical_not(d), op.convert(chosen, "u8")]
results += [op.convert(e, "i32"), op.multiply(f, f)]
model = ov.Model([op.result(result) for result in results], given, "types")
""",
    "quantised": """
def fake(data, low, high, levels):
    bounds = [op.constant(np.float32(bound)) for bound in (low, high, low, high)]
    return op.fake_quantize(data, *bounds, levels)
x = parameter([1, 3, 16, 16])
kernels = np.random.default_rng(4).integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
scales = op.constant(np.full((8, 1, 1, 1), 0.01, np.float32))
kernel = op.multiply(op.convert(op.constant(kernels), "f32"), scales)
y = op.convolution(fake(x, -1, 1, 256), kernel, [1, 1], [1, 1], [1, 1], [1, 1])
second = fake(constant(5, 4, 8, 1, 1), -1, 1, 255)
z = op.convolution(fake(op.relu(y), 0, 4, 256), second, [1, 1], [0, 0], [0, 0], [1, 1])
model = ov.Model([op.result(op.reduce_mean(z, op.constant(np.array([2, 3])), False))], [x], "quantised")
""",
    "scalars": """
x, y = parameter([]), parameter([3])
results = [op.multiply(x, y), op.add(x, op.constant(np.float32(1)))]
model = ov.Model([op.result(result) for result in results], [x, y], "scalars")
""",
    "no names": """
x, y = parameter([4]), parameter([4])
results = [op.add(x, y), op.multiply(x, y), op.add(x, y)]
model = ov.Model([op.result(result) for result in results], [x, y])
for port in [*model.inputs, *model.outputs]: port.get_tensor().set_names(set())
""",
    "nothing computed": """
x = parameter([2, 2])
model = ov.Model([op.result(x), op.result(op.constant(np.arange(4, dtype=np.float32)))], [x], "through")
""",
}

FEATURES = {
    "inference, exported and imported": """
given, compiled = inputs_of(model), core.compile_model(model, "NPU")
check(compiled, model, *given)
check(core.import_model(io.BytesIO(bytes_of(compiled.export_model())), "NPU"), model, *given)
""",
    "cache directory": """
core.set_property({"CACHE_DIR": sys.argv[2]})
for loaded in (False, True):
    compiled = core.compile_model(model, "NPU")
    check(compiled, model, *inputs_of(model))
    assert compiled.get_property("LOADED_FROM_CACHE") == loaded
""",
    "queue with callbacks": """
compiled = core.compile_model(model, "NPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
queue, out, given = ov.AsyncInferQueue(compiled, 4), {}, [inputs_of(model) for _ in range(12)]
def keep(request, at):
    out[at] = [request.get_output_tensor(index).data.copy() for index in range(len(model.outputs))]
queue.set_callback(keep)
for at, data in enumerate(given): queue.start_async(dict(enumerate(data)), at)
queue.wait_all()
reference = reference_of(model)
for at, data in enumerate(given): same(out[at], reference(data))
""",
    "eight threads": """
compiled, given, failed = core.compile_model(model, "NPU"), inputs_of(model), []
expected = on_cpu(model, given)
def work():
    try:
        request = compiled.create_infer_request()
        for _ in range(5): same([value.copy() for value in request.infer(given).values()], expected)
    except Exception as failure:
        failed.append(failure)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed[0]
""",
    "profile": """
compiled, given = core.compile_model(model, "NPU", {"PERF_COUNT": True}), inputs_of(model)
request = compiled.create_infer_request()
same(list(request.infer(given).values()), on_cpu(model, given))
assert request.get_profiling_info()
""",
    "turbo, priority, workload, deferred load, every property": """
config = {"NPU_TURBO": True, "MODEL_PRIORITY": "HIGH", "NPU_DEFER_WEIGHTS_LOAD": True}
compiled, given = core.compile_model(model, "NPU", config), inputs_of(model)
for workload in ("EFFICIENT", "DEFAULT"):
    compiled.set_property({"WORKLOAD_TYPE": workload})
    check(compiled, model, *given)
for name in compiled.get_property("SUPPORTED_PROPERTIES"): compiled.get_property(name)
assert len(core.query_model(model, "NPU")) == len(model.get_ops())
""",
    "remote inputs, tensors that are set again": """
context = core.get_default_context("NPU")
compiled = core.compile_model(model, context, {})
request, reference = compiled.create_infer_request(), reference_of(model)
for remote in (True, False, True):
    given = inputs_of(model)
    for index, value in enumerate(given):
        tensor = ov.Tensor(model.inputs[index].get_element_type(), ov.Shape(list(value.shape)))
        if remote: tensor = context.create_host_tensor(tensor.element_type, tensor.shape)
        tensor.data[...] = value
        request.set_input_tensor(index, tensor)
    request.infer()
    outputs = [request.get_output_tensor(index).data for index in range(len(model.outputs))]
    same(outputs, reference(given))
""",
}


def _cases(diagonals: int) -> dict[str, str]:
    """Return every feature with so many models, each model with so many features."""
    return {
        f"{feature}: {model}": MODELS[model] + code
        for row, (feature, code) in enumerate(FEATURES.items())
        for column, model in enumerate(MODELS)
        if (column - row) % len(MODELS) < diagonals
    }


def test_openvino_with_models_of_every_kind(run_cases: RunCases) -> None:
    cases = _cases(3)
    assert all(sum(name in case for case in cases) >= 3 for name in (*FEATURES, *MODELS))
    run_cases(cases, HELPERS)


@pytest.mark.soak
def test_openvino_with_every_feature_of_models_of_every_kind(run_cases: RunCases) -> None:
    run_cases(_cases(len(MODELS)), HELPERS)


def real_model(name: str) -> str:
    return f"model = core.read_model({str(get(name))!r})\nmodel.reshape({lookup(name).shapes!r})\n"


REAL = ("yolov8n", "magika", "minilm")


def test_openvino_with_real_models(run_cases: RunCases) -> None:
    run_cases({name: real_model(name) + next(iter(FEATURES.values())) for name in REAL}, HELPERS)


@pytest.mark.soak
@pytest.mark.parametrize("name", REAL)
def test_openvino_with_every_feature_of_real_models(run_cases: RunCases, name: str) -> None:
    run_cases({feature: real_model(name) + code for feature, code in FEATURES.items()}, HELPERS)


COMPRESSED = """
def results(device, config):
    packed = ov.op.Parameter(getattr(ov.Type, KIND), ov.PartialShape([4, 8]))
    model = ov.Model([op.convert(packed, "f32"), op.unsqueeze(packed, op.constant([0]))], [packed], KIND)
    request = core.compile_model(model, device, config).create_infer_request()
    data = request.get_input_tensor(0).data.reshape(-1).view(np.uint8)
    data[:] = np.arange(5, 5 + data.size)
    request.infer()
    return [bytes(tensor.data.reshape(-1).view(np.uint8)) for tensor in request.output_tensors]
assert results("NPU", {}) == results("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
"""


def test_openvino_with_arguments_of_compressed_types(run_cases: RunCases) -> None:
    """Types of weights: in an int4 language model that NPUW splits, weights are inputs."""
    kinds = ("i4", "u4", "u2", "nf4", "f8e4m3", "f8e5m2", "f8e8m0")
    run_cases({kind: f"KIND = {kind!r}\n{COMPRESSED}" for kind in kinds}, HELPERS)


STATEFUL = """
x, info = parameter([1, 4]), ov.op.util.VariableInfo()
info.variable_id, info.data_shape, info.data_type = "sum", ov.PartialShape([1, 4]), ov.Type.f32
variable = ov.op.util.Variable(info)
state = op.read_value(op.constant(np.zeros((1, 4), np.float32)), variable)
total = op.add(state, op.matmul(x, constant(5, 4, 4), False, False))
ov.save_model(
    ov.Model([op.result(total)], [op.assign(total, variable)], [x], "stateful"),
    sys.argv[2] + "/model.xml", compress_to_fp16=False,
)
model, config = core.read_model(sys.argv[2] + "/model.xml"), CONFIG
reference = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
compiled = core.compile_model(model, "NPU", config)
weights = {"WEIGHTS_PATH": sys.argv[2] + "/model.bin"} if config else {}
imported = core.import_model(io.BytesIO(bytes_of(compiled.export_model())), "NPU", weights)
for each in (compiled, imported):
    ours, theirs = each.create_infer_request(), reference.create_infer_request()
    def near():
        given = inputs_of(model)
        assert np.allclose(ours.infer(given)[0], theirs.infer(given)[0], 1e-5, 1e-6)
    for _ in range(2):
        for _ in range(3): near()
        assert [state.name for state in ours.query_state()] == ["sum"]
        for request in (ours, theirs): request.query_state()[0].state = ov.Tensor(np.ones((1, 4), np.float32))
        near()
        for request in (ours, theirs): request.reset_state()
"""


LONG_NAMES = """
def variable_of(name):
    info = ov.op.util.VariableInfo()
    info.variable_id, info.data_shape, info.data_type = name, ov.PartialShape([1, 4]), ov.Type.f32
    return ov.op.util.Variable(info)
x, results, sinks = op.parameter(ov.PartialShape([ov.Dimension(1, 3), 4]), np.float32, "x" * 400), [], []
for number in range(3):
    variable = variable_of(LETTER * 400 + str(number))
    state = op.read_value(op.constant(np.zeros((1, 4), np.float32)), variable)
    total = op.add(state, op.constant(np.full((1, 4), number + 1, np.float32)))
    sinks.append(op.assign(total, variable))
    results.append(op.result(op.add(x, total)))
model = ov.Model(results, sinks, [x], "long")
ours = core.compile_model(model, "NPU").create_infer_request()
theirs = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
for batch in (1, 3, 2):
    given = ov.Tensor(rng.random((batch, 4), np.float32))
    for request in (ours, theirs):
        request.set_input_tensor(given)
        request.infer()
    same(*([request.get_output_tensor(at).data for at in range(3)] for request in (ours, theirs)))
assert len({state.name for state in ours.query_state()}) == 3
"""


BATCH = """
model = core.read_model(DIGITS)
model.reshape([BATCHES, 1, 8, 8])
model.get_parameters()[0].set_layout(ov.Layout("NCHW"))
request = core.compile_model(model, "NPU", CONFIG).create_infer_request()
for batch in (1, 3, 5, 2):
    given = images(batch)
    request.set_input_tensor(ov.Tensor(given))
    request.infer()
    same([request.get_output_tensor(0).data], on_cpu(model, [given]))
"""


OPEN, BOUNDED = "-1", "ov.Dimension(1, 8)"
CASES = {
    # with separated weights the plugin counts states before weights
    **{f"states, {config}": f"CONFIG = {config}\n{STATEFUL}" for config in ({}, {"ENABLE_WEIGHTLESS": True})},
    # Level Zero has room for 255 bytes of a name
    **{f"names that begin with many {letter}": f"LETTER = {letter!r}\n{LONG_NAMES}" for letter in "sä"},
    **{
        f"a batch that changes, {mode} {batches}": f"CONFIG, BATCHES = {mode}, {batches}\n{BATCH}"
        for mode, batches in (
            ({}, OPEN),
            ({"NPU_BATCH_MODE": "AUTO"}, OPEN),
            ({"NPU_BATCH_MODE": "PLUGIN"}, OPEN),
            ({}, BOUNDED),
            ({"NPU_BATCH_MODE": "PLUGIN"}, BOUNDED),
            ({"NPU_BATCH_MODE": "COMPILER"}, BOUNDED),
        )
    },
}


def test_openvino_with_states_and_batches(run_cases: RunCases) -> None:
    run_cases(CASES, HELPERS)
