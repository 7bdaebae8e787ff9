"""Weights separation with unmodified OpenVINO: blobs without weights, taken from the client's file."""

from __future__ import annotations

from tests.native.conftest import RunCases

WEIGHTLESS = """
folder = sys.argv[2]
CONFIG = {"ENABLE_WEIGHTLESS": True}
def near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape and np.allclose(one, other, 1e-4, 1e-5), (one, other)
def written(model, name):
    ov.save_model(model, f"{folder}/{name}.xml", compress_to_fp16=False)
    return ov.Core().read_model(f"{folder}/{name}.xml")
def blob_of(compiled):
    blob = compiled.export_model()
    return blob.getvalue() if hasattr(blob, "getvalue") else blob
def through(model, path, *inputs):
    core = ov.Core()
    # not the CPU device: with weights of 8 bits it quantises inputs too
    expected = list(core.compile_model(model, "NPU")(list(inputs)).values())
    compiled = core.compile_model(model, "NPU", CONFIG)
    for _ in range(3): near(list(compiled(list(inputs)).values()), expected)
    blob = blob_of(compiled)
    imported = core.import_model(io.BytesIO(blob), "NPU", {"WEIGHTS_PATH": path})
    near(list(imported(list(inputs)).values()), expected)
    return blob
def dense(kind):
    x = op.parameter([2, 64], np.float32, "x")
    values = (np.random.default_rng(7).random((64, 256)) * 100).astype(kind)
    scale = op.constant(np.full((1, 256), 0.01, np.float32))
    y = op.matmul(x, op.multiply(op.convert(op.constant(values), "f32"), scale), False, False)
    total = op.reduce_sum(y, op.constant([1], dtype=np.int64))
    return ov.Model([op.result(y), op.result(total)], [x], "dense")
"""

CASES = {
    "convolutions": """
blob = through(digits(), DIGITS.replace(".xml", ".bin"), images())
assert len(blob) < len(blob_of(core.compile_model(digits(), "NPU"))) / 3
""",
    "weights of 16 bits": """
through(written(dense(np.float16), "half"), f"{folder}/half.bin", rng.random((2, 64), np.float32))
""",
    "weights of 8 bits": """
through(written(dense(np.int8), "int8"), f"{folder}/int8.bin", rng.random((2, 64), np.float32))
""",
    "weights of six dimensions, more than Level Zero tells of": """
x = op.parameter([1, 4, 5, 6, 6], np.float32, "x")
deep = op.constant(rng.normal(0, 0.3, (2, 3, 2, 3, 3, 3)).astype(np.float32))
flat = op.constant(rng.normal(0, 0.3, (6, 4)).astype(np.float32))
ones = [1, 1, 1]
y = op.reshape(op.group_convolution(x, deep, ones, ones, ones, ones), op.constant([180, 6]), False)
model = written(ov.Model([op.result(op.matmul(y, flat, False, False))], [x], "deep"), "deep")
through(model, f"{folder}/deep.bin", rng.random((1, 4, 5, 6, 6), np.float32))
""",
    "more than a thousand arguments": """
y = x = op.parameter([2, 8], np.float32, "x")
for _ in range(520): y = op.add(y, op.constant(rng.random((1, 8), np.float32)))
model = written(ov.Model([op.result(y)], [x], "many"), "many")
through(model, f"{folder}/many.bin", rng.random((2, 8), np.float32))
""",
    "import with the model": """
blob = blob_of(core.compile_model(digits(), "NPU", CONFIG))
imported, image = core.import_model(io.BytesIO(blob), "NPU", {"MODEL_PTR": digits()}), images()
near(list(imported([image]).values()), on_cpu(digits(), [image]))
""",
    "import without weights": """
blob = blob_of(core.compile_model(digits(), "NPU", CONFIG))
try:
    core.import_model(io.BytesIO(blob), "NPU")
except RuntimeError as failure:
    assert "no weights have been provided" in str(failure)
else:
    raise AssertionError("imported")
""",
    "other weights of the same sizes": """
model = core.read_model(DIGITS)
data = np.fromfile(DIGITS.replace(".xml", ".bin"), np.uint8)
image, name = images(), f"{folder}/other.bin"
blob = blob_of(core.compile_model(digits(), "NPU", CONFIG))
for node in model.get_ops():
    if node.get_type_name() == "Constant" and node.friendly_name == "convolution_1/kernel": kernel = node
place = data.tobytes().index(kernel.data.tobytes())
data[place:place + kernel.get_byte_size()] = 0
data.tofile(name)
other = core.read_model(DIGITS, name)
other.reshape([1, 1, 8, 8])
imported = core.import_model(io.BytesIO(blob), "NPU", {"WEIGHTS_PATH": name})
near(list(imported([image]).values()), on_cpu(other, [image]))
""",
    "cache directory for small files": """
core.set_property({"CACHE_DIR": f"{folder}/cache", "CACHE_MODE": "OPTIMIZE_SIZE"})
image = images()
for loaded in (False, True):
    compiled = core.compile_model(digits(), "NPU", CONFIG)
    near(list(compiled([image]).values()), on_cpu(digits(), [image]))
assert compiled.get_property("LOADED_FROM_CACHE")
""",
    "nothing to separate": """
x = op.parameter([4], np.float32, "x")
model = written(ov.Model([op.result(op.add(x, op.constant(np.float32(1))))], [x], "small"), "small")
try:
    compiled = core.compile_model(model, "NPU", CONFIG)
except RuntimeError as failure:
    print(failure)
else:
    near(list(compiled([np.ones(4, np.float32)]).values()), [np.full(4, 2, np.float32)])
""",
    "batch that changes": """
x = op.parameter(ov.PartialShape([ov.Dimension(1, 8), 64]), np.float32, "x")
weights = op.constant(np.random.default_rng(7).random((64, 32), np.float32))
model = written(ov.Model([op.result(op.matmul(x, weights, False, False))], [x], "open"), "open")
compiled = core.compile_model(model, "NPU", {**CONFIG, "NPU_BATCH_MODE": "COMPILER"})
imported = core.import_model(io.BytesIO(blob_of(compiled)), "NPU", {"WEIGHTS_PATH": f"{folder}/open.bin"})
for request in (compiled.create_infer_request(), imported.create_infer_request()):
    for batch in (3, 1, 5):
        given = rng.random((batch, 64), np.float32)
        request.set_input_tensor(ov.Tensor(given))
        request.infer()
        near([request.get_output_tensor(0).data], on_cpu(model, [given]))
""",
}


def test_openvino_separates_weights(run_cases: RunCases) -> None:
    run_cases(CASES, WEIGHTLESS)
