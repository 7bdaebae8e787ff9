"""Unmodified OpenVINO with its own NPU plugin finds the device; the numbers are those of its CPU device."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import StartDaemon
from tests.native.conftest import OPENVINO, Run, RunCases

CASES = {
    "device is listed, with its properties": """
assert "NPU" in core.available_devices, core.available_devices
assert core.get_property("NPU", "DEVICE_ARCHITECTURE") == "4000"
assert core.get_property("NPU", "FULL_DEVICE_NAME") == "Intel(R) AI Boost"
assert core.get_property("NPU", "NPU_DEVICE_TOTAL_MEM_SIZE") > 0
assert core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE") >= 0
""",
    "f16 is the arithmetic of the device, only if it is asked for": """
from softnpu.emulator.arithmetic.rewriting import rewrite
from softnpu.emulator.arithmetic.settings import Arithmetic
def in_f16(given, **settings):
    model = digits()
    rewrite(model, Arithmetic(**settings))
    return on_cpu(model, [given])
given = images()
layers = "compute-layers-with-higher-precision=Convolution,MatMul"
kept = frozenset({"Convolution", "MatMul"})
f16 = {"INFERENCE_PRECISION_HINT": "f16"}
cases = [
    (f16, {}),
    ({"INFERENCE_PRECISION_HINT": "i8"}, {}),
    (f16 | {"NPU_F16_OVERFLOW": "INFINITY"}, {"saturates": False}),
    (f16 | {"NPU_COMPILATION_MODE_PARAMS": layers}, {"kept": kept}),
]
found = []
for config, settings in cases:
    compiled = core.compile_model(digits(), "NPU", config)
    used = compiled.get_property("INFERENCE_PRECISION_HINT")
    assert used == getattr(ov.Type, config["INFERENCE_PRECISION_HINT"])
    found.append(list(compiled([given]).values()))
    np.testing.assert_array_equal(found[-1][0], in_f16(given, **settings)[0])
assert not np.array_equal(found[0][0], found[3][0])
check(core.compile_model(digits(), "NPU"), digits(), given)
try:
    core.compile_model(digits(), "NPU", f16 | {"NPU_COMPILATION_MODE_PARAMS": layers + ",Squrt"})
except RuntimeError as error:
    assert "'Squrt'" in str(error) and "Did you mean Sqrt?" in str(error), error
else:
    raise AssertionError("a layer that is none")
""",
    "what the device says of itself is accepted": """
assert core.get_property("NPU", "OPTIMIZATION_CAPABILITIES") == ["FP16", "INT8", "EXPORT_IMPORT"]
gops = core.get_property("NPU", "DEVICE_GOPS")
assert gops[ov.Type.i8] == 2 * gops[ov.Type.f16] and abs(gops[ov.Type.i8] - 1.95 * 6 * 4096) < 1, gops
assert core.get_property("NPU", "INFERENCE_PRECISION_HINT") == ov.Type.f16
assert core.get_property("NPU", "NPU_MAX_TILES") == 6
check(core.compile_model(digits(), "NPU", {"NPU_TILES": 6}), digits(), images())
for config in ({"NPU_TILES": 9}, {"NPU_TILES": 7, "NPU_MAX_TILES": 8}):
    try:
        core.compile_model(digits(), "NPU", config)
    except RuntimeError as error:
        assert "at most 6, the tiles of platform 4000" in str(error)
    else:
        raise AssertionError(config)
""",
    "default settings": "check(core.compile_model(digits(), 'NPU'), digits(), images())",
    "weights that are copied": """
compiled = core.compile_model(digits(), "NPU", {"NPU_MODEL_SERIALIZER_VERSION": "ALL_WEIGHTS_COPY"})
check(compiled, digits(), images())
""",
    "model made in the program, its weights in the heap": """
def made():
    x = op.parameter([2, 64], np.float32, "x")
    weights = np.random.default_rng(7).random((64, 128), np.float32)
    y = op.relu(op.matmul(x, op.constant(weights), False, False))
    total = op.reduce_sum(y, op.constant([1], dtype=np.int64))
    return ov.Model([op.result(y), op.result(total)], [x], "made")
check(core.compile_model(made(), "NPU"), made(), rng.random((2, 64), np.float32))
""",
    "several inputs of other types": """
a, b = op.parameter([3, 4], np.int32, "a"), op.parameter([3, 4], np.int64, "b")
model = ov.Model([op.result(op.add(op.convert(a, "i64"), b))], [a, b], "types")
compiled = core.compile_model(model, "NPU")
x, y = rng.integers(0, 9, (3, 4)).astype(np.int32), rng.integers(0, 9, (3, 4))
assert np.array_equal(compiled([x, y])[0], x + y)
""",
    "cache of the driver": """
folder = sys.argv[2] + "/driver"
os.makedirs(folder)
os.environ["ZE_INTEL_NPU_CACHE_DIR"] = folder
kept = []
for bypass in (True, False, False):
    check(core.compile_model(digits(), "NPU", {"NPU_BYPASS_UMD_CACHING": bypass}), digits(), images())
    kept.append(sorted(os.listdir(folder)))
assert kept[0] == [] and kept[1] and kept[1] == kept[2], kept
""",
    "models that the program encrypts": """
def crypt(key):
    one = lambda data: bytes(byte ^ key for byte in data)
    return {"CACHE_ENCRYPTION_CALLBACKS": [one, one], "CACHE_DIR": sys.argv[2] + "/encrypted"}
os.environ["ZE_INTEL_NPU_CACHE_DIR"] = cache = sys.argv[2] + "/secure"
image, found = images(), []
for key in (7, 7, 9):
    compiled = core.compile_model(digits(), "NPU", crypt(key))
    check(compiled, digits(), image)
    found.append(compiled.get_property("LOADED_FROM_CACHE"))
assert found == [False, True, False], found
stream = io.BytesIO()
compiled.export_model(stream)
assert b"SNPUBLOB" not in stream.getvalue()
check(core.import_model(io.BytesIO(stream.getvalue()), "NPU", crypt(9)), digits(), image)
core.compile_model(digits(), "NPU", {"CACHE_ENCRYPTION_CALLBACKS": crypt(9)["CACHE_ENCRYPTION_CALLBACKS"]})
assert not os.path.exists(cache) or not os.listdir(cache), os.listdir(cache)
""",
    "tensors that are set again": """
request = core.compile_model(digits(), "NPU").create_infer_request()
for _ in range(3):
    image = images()
    request.set_input_tensor(ov.Tensor(image))
    request.infer()
    same([request.get_output_tensor(0).data], on_cpu(digits(), [image]))
image = images()
request.set_input_tensor(ov.Tensor(np.zeros((1, 1, 8, 8), np.float32)))
request.get_input_tensor(0).data[:] = image
request.infer()
same([request.get_output_tensor(0).data], on_cpu(digits(), [image]))
""",
    "batches": """
for batch in (2, 5):
    check(core.compile_model(digits(batch), "NPU"), digits(batch), images(batch))
""",
    "batch in several tensors": """
def scores(batch):
    model = digits(batch)
    model.get_parameters()[0].set_layout(ov.Layout("NCHW"))
    return model
for mode in ("COMPILER", "AUTO"):
    request = core.compile_model(scores(3), "NPU", {"NPU_BATCH_MODE": mode}).create_infer_request()
    for _ in range(2):
        samples = images(3)
        request.set_input_tensors([ov.Tensor(sample[None].copy()) for sample in samples])
        same(list(request.infer().values()), on_cpu(scores(3), [samples]))
""",
    "every performance hint": """
for hint in ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"):
    check(core.compile_model(digits(), "NPU", {"PERFORMANCE_HINT": hint}), digits(), images())
""",
    "as many dimensions as Level Zero tells of, and more": """
def sine(before, after):
    x = op.parameter(before, np.float32, "x")
    y = op.sin(x) if before == after else op.reshape(x, op.constant(after), False)
    return ov.Model([op.result(y)], [x], "sine")
five, six = [2] * 5, [2] * 6
check(core.compile_model(sine(five, five), "NPU"), sine(five, five), rng.random(five, np.float32))
for model, wrong in ((sine(six, six), "input"), (sine([64], six), "output")):
    try:
        core.compile_model(model, "NPU")
    except RuntimeError as failure:
        said = str(failure)
        assert f"graph 'sine', {wrong}" in said and "6 dimensions; expected at most 5" in said, said
    else:
        raise AssertionError("compiled")
""",
    "dimensions without bounds, results of any size": """
def unbounded(shape):
    x = op.parameter(ov.PartialShape(shape), np.float32, "x")
    unique = op.unique(x)
    results = [op.relu(x), op.non_zero(x), *(unique.output(index) for index in range(4))]
    return ov.Model([op.result(result) for result in results], [x], "unbounded")
for shape, sizes in (([-1] * 4, [(1, 2, 3, 4), (3, 4, 300, 5)]), ([-1, 16], [(7, 16), (900, 16), (1, 16)])):
    compiled = core.compile_model(unbounded(shape), "NPU")
    blob = compiled.export_model()
    imported = core.import_model(io.BytesIO(getattr(blob, "getvalue", lambda: blob)()), "NPU")
    requests = [each.create_infer_request() for each in (compiled, imported) for _ in range(3)]
    for size in sizes:
        image = np.round(rng.normal(0, 3, size)).astype(np.float32)
        expected = on_cpu(unbounded(shape), [image])
        for request in requests: same(list(request.infer([image]).values()), expected)
assert core.get_property("NPU", "NPU_DEVICE_ALLOC_MEM_SIZE") < 2**26
def chosen(operation):
    x = op.parameter(ov.PartialShape([-1] * 4), np.float32, "x")
    model = ov.Model([op.result(operation(x))], [x], "chosen")
    return model, core.compile_model(model, "NPU", {"NPU_UNBOUNDED_BYTES": "256"})
model, compiled = chosen(op.relu)
check(compiled, model, rng.random((1, 6, 9, 1), np.float32))
for compiled, size, said in ((compiled, 55, "exceeds"), (chosen(op.non_zero)[1], 20, "INVALID_SIZE")):
    try:
        compiled(rng.random((1, 1, size, 1), np.float32))
    except RuntimeError as failure:
        assert said in str(failure), failure
    else:
        raise AssertionError("more than what was chosen")
""",
    "outputs that are inputs or each other": """
from tests.support.shared_tensors import MODELS, handed_on
for shape in ([2, 3], [2, ov.Dimension(1, 6)]):
    for build in MODELS.values():
        model = build(shape)
        inputs = [rng.random((2, 3), np.float32) for _ in model.inputs]
        check(core.compile_model(model, "NPU"), model, *inputs)
for kind in (np.float64, np.int64, np.uint64):
    given = np.array([0.1, 2**40 + 1, 3]).astype(kind)
    assert np.array_equal(core.compile_model(handed_on(ov.Type(kind), [3]), "NPU")(given)[0], given)
""",
    "tensors named as those of states and of shapes": """
for name in ("vpux_ie_shape_y", "vpux_ie_read_value_y", "vpux_ie_assign_y"):
    x = op.parameter([2, 3], np.float32, "x")
    y = op.exp(x)
    y.output(0).set_names({name})
    model = ov.Model([op.result(y)], [x], "named")
    check(core.compile_model(model, "NPU"), model, rng.random((2, 3), np.float32))
""",
    "constants without elements": """
from tests.support.empty_constants import MODELS
for build in MODELS.values():
    model = build()
    inputs = [rng.random(list(x.shape)).astype(x.element_type.to_dtype()) for x in model.inputs]
    ov.save_model(model, sys.argv[2] + "/model.xml", compress_to_fp16=False)
    read = core.read_model(sys.argv[2] + "/model.xml")
    check(core.compile_model(model, "NPU"), model, *inputs)
    check(core.compile_model(read, "NPU"), model, *inputs)
    copied = core.compile_model(model, "NPU", {"NPU_MODEL_SERIALIZER_VERSION": "ALL_WEIGHTS_COPY"})
    check(copied, model, *inputs)
    blob = copied.export_model()
    data = blob.getvalue() if hasattr(blob, "getvalue") else blob
    check(core.import_model(io.BytesIO(data), "NPU"), model, *inputs)
    check(core.compile_model(read, "NPU", {"ENABLE_WEIGHTLESS": True}), model, *inputs)
""",
    "names that are not UTF-8": """
path = sys.argv[2] + "/odd.xml"
x = op.parameter([2, 3], np.float32, "x~")
x.output(0).set_names({"tensor~"})
y = op.multiply(x, op.constant(np.full((2, 3), 2, np.float32), name="two~"), name="y~")
y.output(0).set_names({"result~"})
ov.serialize(ov.Model([op.result(y, name="out~")], [x], "model~"), path)
with open(path, "rb+") as file:
    data = file.read().replace(b"~", b"\\xe4")
    file.seek(0)
    file.write(data)
os.environb[b"ZE_INTEL_NPU_CACHE_DIR"] = sys.argv[2].encode() + b"/cache\\xe4"
for config in ({}, {"NPU_MODEL_SERIALIZER_VERSION": "ALL_WEIGHTS_COPY"}):
    compiled = core.compile_model(core.read_model(path), "NPU", config)
    assert np.array_equal(compiled([np.ones((2, 3), np.float32)])[0], np.full((2, 3), 2))
core.query_model(core.read_model(path), "NPU")
""",
    "model that cannot be compiled": """
x = op.parameter(ov.PartialShape.dynamic(), np.float32, "x")
try:
    core.compile_model(ov.Model([op.result(op.relu(x))], [x], "open"), "NPU")
except RuntimeError as failure:
    assert failure.args
else:
    raise AssertionError("compiled")
check(core.compile_model(digits(), "NPU"), digits(), images())
""",
}


def test_openvino(run_cases: RunCases) -> None:
    run_cases(CASES)


MEMORY_OF_THE_PROGRAM = """
import fcntl, mmap
from softnpu.driver import faults
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
def tensors(memory):
    return [np.frombuffer(memory, np.float32, 4096, at).reshape(1, 4096) for at in (0, 16384)]
x = op.parameter([1, 4096], np.float32)
request = core.compile_model(ov.Model([op.relu(op.add(x, x))], [x], "twice"), "NPU").create_infer_request()
fd = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 32768)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
imported = faults.inject("delay", value="mem_import_part=1us", count=None)
for memory in (mmap.mmap(fd, 32768), mmap.mmap(-1, 32768, flags=mmap.MAP_PRIVATE)):
    given, made = tensors(memory)
    request.set_input_tensor(ov.Tensor(given, shared_memory=True))
    request.set_output_tensor(ov.Tensor(made, shared_memory=True))
    for _ in range(2):
        given[:] = rng.random((1, 4096), np.float32)
        request.infer()
        assert np.array_equal(made, given + given)
    assert next(one.hits for one in faults.status() if one.id == imported) >= 2
faults.clear([imported])
os.close(fd)
"""


def test_tensors_in_memory_of_the_program(start_daemon: StartDaemon, run: Run, digits: Path) -> None:
    """The injection counts imports: those in sealed memory succeed, others are attempted."""
    start_daemon()
    run(OPENVINO + MEMORY_OF_THE_PROGRAM, str(digits))


TWO_DEVICES = """
assert core.get_property("NPU", "DEVICE_ARCHITECTURE") == sys.argv[2]
for name in ("NPU", f"NPU.{sys.argv[2]}"):
    check(core.compile_model(digits(), name), digits(), images())
"""


def test_openvino_uses_the_first_visible_device(start_daemon: StartDaemon, run: Run, digits: Path) -> None:
    # the plugin asks the driver for one device only, whatever the name in the program
    start_daemon(devices=("4000", "3720"))
    for mask, platform in (("", "4000"), ("1", "3720")):
        run(OPENVINO + TWO_DEVICES, str(digits), platform, environment={"ZE_AFFINITY_MASK": mask})


ENGINE_KILLED = """
import signal
compiled, image, wrong = core.compile_model(digits(), "NPU"), images(), []
expected, killed = on_cpu(digits(), [image])[0], threading.Event()
def work():
    request = compiled.create_infer_request()
    for left in range(600):
        if not np.array_equal(request.infer([image])[0], expected): wrong.append(1)
        if left == 200 and not killed.is_set():
            killed.set()
            os.kill(int(sys.argv[2]), signal.SIGKILL)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert killed.is_set() and not wrong
"""


def test_killing_the_engine_changes_no_result(start_daemon: StartDaemon, run: Run, digits: Path) -> None:
    daemon = start_daemon()
    daemon.wait_restarted(0)
    run(OPENVINO + ENGINE_KILLED, str(digits), str(daemon.engine().engine_pid))
    daemon.wait_restarted(1)


def test_without_a_daemon_openvino_has_no_npu_and_continues(run: Run, digits: Path) -> None:
    done = run("import openvino as ov; print(ov.Core().available_devices)", str(digits))
    assert done.stdout == "['CPU']\n"
    assert "softnpu daemon" in done.stderr
