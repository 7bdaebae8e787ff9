"""ONNX Runtime's OpenVINO provider on the emulated NPU: what works with which release, the table.

    softnpu run -- python -m tests.native.onnx_runtime PYTHON...    # one interpreter for each release

prints the table of docs/native.md. The file is a program of its own as well, for interpreters that have
`onnxruntime-openvino` but nothing of softnpu: it prints an outcome for each row. No session may fall back to
a CPU, so that every number is the NPU's; the provider itself leaves an LSTM to ONNX Runtime's CPU.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Feed = dict[str, Any]
PROVIDER = "OpenVINOExecutionProvider"
FARTHEST = 1e-4
"""The largest relative difference from ONNX Runtime's own CPU provider: it computes in another order."""


def write_models(folder: Path) -> None:
    """Write the models of the rows, and `seven_dimensions`, which the driver refuses. Needs `onnx`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(7)

    def weights(*shape: int) -> Any:
        return random.normal(0, 0.3, shape).astype(np.float32)

    def save(name: str, nodes: Sequence[tuple[Any, ...]], ports: Sequence[Any], constants: Feed) -> None:
        values = [helper.make_tensor_value_info(port, kind, shape) for port, kind, shape in ports]
        made = [
            helper.make_node(kind, inputs.split(), outputs.split(), **more)
            for kind, inputs, outputs, more in nodes
        ]
        graph = helper.make_graph(
            made,
            name,
            [value for value in values if not value.name.startswith("y")],
            [value for value in values if value.name.startswith("y")],
            [numpy_helper.from_array(value, key) for key, value in constants.items()],
        )
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / f"{name}.onnx")

    single, half, whole = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
    image, ten = ("x", single, [1, 3, 16, 16]), ("y", single, [1, 10])
    head: list[tuple[Any, ...]] = [
        ("GlobalAveragePool", "r", "p", {}),
        ("Flatten", "p", "f", {}),
        ("MatMul", "f d", "y", {}),
    ]
    save(
        "convolution",
        [("Conv", "x w b", "c", {"pads": [1] * 4}), ("Relu", "c", "r", {}), *head],
        [image, ten],
        {"w": weights(8, 3, 3, 3), "b": weights(8), "d": weights(8, 10)},
    )
    quantised: list[tuple[Any, ...]] = [
        ("QuantizeLinear", "x s z", "xq", {}),
        ("DequantizeLinear", "xq s z", "xd", {}),
        ("DequantizeLinear", "w ws wz", "wd", {"axis": 0}),
        ("Conv", "xd wd", "c", {"pads": [1] * 4}),
        ("Relu", "c", "r", {}),
    ]
    save(
        "int8_qdq",
        [*quantised, *head],
        [image, ten],
        {
            "w": random.integers(-127, 127, (8, 3, 3, 3)).astype(np.int8),
            "ws": np.full(8, 0.003, np.float32),
            "wz": np.zeros(8, np.int8),
            "s": np.float32(0.03),
            "z": np.uint8(128),
            "d": weights(8, 10),
        },
    )
    save(
        "attention",
        [
            *[("MatMul", f"x w{name}", name, {}) for name in "qkv"],
            ("Transpose", "k", "kt", {"perm": [0, 2, 1]}),
            ("MatMul", "q kt", "s", {}),
            ("Softmax", "s", "p", {}),
            ("MatMul", "p v", "a", {}),
            ("LayerNormalization", "a g", "y", {}),
        ],
        [("x", single, [1, 6, 8]), ("y", single, [1, 6, 8])],
        {**{f"w{name}": weights(8, 8) for name in "qkv"}, "g": np.ones(8, np.float32)},
    )
    save(
        "f16",
        [("MatMul", "x w", "m", {}), ("Tanh", "m", "y", {})],
        [("x", half, [2, 16]), ("y", half, [2, 4])],
        {"w": weights(16, 4).astype(np.float16)},
    )
    save(
        "embedding",
        [("Gather", "t x", "g", {}), ("Softmax", "g", "y", {})],
        [("x", whole, [1, 6]), ("y", single, [1, 6, 8])],
        {"t": weights(20, 8)},
    )
    save(
        "open_dimension",
        [("MatMul", "x w", "m", {}), ("Softmax", "m", "y", {})],
        [("x", single, ["rows", 8]), ("y", single, ["rows", 4])],
        {"w": weights(8, 4)},
    )
    save(
        "computed_size",
        [("NonZero", "x", "y", {})],
        [("x", single, [2, 3]), ("y", whole, [2, "found"])],
        {},
    )
    seven = [1, 2, 1, 2, 1, 2, 8]
    save("seven_dimensions", [("Abs", "x", "y", {})], [("x", single, seven), ("y", single, seven)], {})


MODELS = ("convolution", "int8_qdq", "attention", "f16", "embedding", "open_dimension", "computed_size")


def session(
    model: str | Path, device: str = "NPU", entries: Mapping[str, str] | None = None, **options: str
) -> Any:
    """Return a session with the provider that may not fall back to a CPU."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for name, value in {"session.disable_cpu_ep_fallback": "1", **(entries or {})}.items():
        settings.add_session_config_entry(name, value)
    path = str(model if Path(model).suffix else f"{model}.onnx")
    return onnxruntime.InferenceSession(
        path, settings, providers=[(PROVIDER, {"device_type": device, **options})]
    )


def feed_of(made: Any, seed: int = 1) -> Feed:
    """Return random inputs; an open dimension has 3."""
    random = np.random.default_rng(seed)
    feed = {}
    for port in made.get_inputs():
        shape = [size if isinstance(size, int) else 3 for size in port.shape]
        whole = port.type == "tensor(int64)"
        kind = np.float16 if port.type == "tensor(float16)" else np.float32
        feed[port.name] = random.integers(0, 20, shape) if whole else random.normal(0, 1, shape).astype(kind)
    return feed


def run(made: Any, feed: Feed | None = None) -> Any:
    """Return the first output."""
    return made.run(None, feed or feed_of(made))[0]


def same(one: Any, other: Any, what: str = "") -> None:
    """Require equal bits."""
    assert one.dtype == other.dtype, what
    assert np.array_equal(one, other), f"{what} {np.abs(one.astype(float) - other).max()}"


def is_the_cpu_device(name: str) -> None:
    """Compare with the provider's CPU bit by bit, and with ONNX Runtime's own CPU roughly."""
    import onnxruntime

    found = run(session(name))
    same(found, run(session(name, "CPU")))
    own = run(onnxruntime.InferenceSession(f"{name}.onnx", providers=["CPUExecutionProvider"]))
    bound = 2e-2 if name == "int8_qdq" else 2e-3 if name == "f16" else FARTHEST
    far = np.abs(found.astype(float) - own).max() / max(np.abs(own).max(), 1e-9)
    assert far <= bound, f"{far} from the CPU provider"


def io_binding() -> None:
    import onnxruntime

    made = session("convolution")
    feed = feed_of(made)
    expected = run(made, feed)
    bound = made.io_binding()
    bound.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(feed["x"]))
    result = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(expected.shape), np.float32)
    bound.bind_ortvalue_output("y", result)
    for _ in range(2):
        made.run_with_iobinding(bound)
    same(result.numpy(), expected)


def several_sessions_in_threads() -> None:
    made = [session(name) for name in ("convolution", "int8_qdq", "attention")]
    feeds = [feed_of(each) for each in made]
    expected = [run(*each) for each in zip(made, feeds, strict=True)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(run(made[number], feeds[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number % 3,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong, wrong


def _in_another_process(name: str, found: Any) -> None:
    found.put(run(session(name)))


def processes_at_once() -> None:
    start = multiprocessing.get_context("spawn")
    found = start.Queue()
    processes = [start.Process(target=_in_another_process, args=("convolution", found)) for _ in range(2)]
    for each in processes:
        each.start()
    results = [found.get(timeout=100) for _ in processes]
    for each in processes:
        each.join()
    same(*results)


def cache_dir() -> None:
    expected = run(session("convolution"))
    for _ in range(2):
        same(run(session("convolution", cache_dir="cache")), expected)
    assert list(Path("cache").glob("*.blob"))


def context_model(embedded: str) -> None:
    path = f"context{embedded}.onnx"
    names = {"enable": "1", "embed_mode": embedded, "file_path": path}
    entries = {f"ep.context_{name}": value for name, value in names.items()}
    same(run(session("int8_qdq", entries=entries)), run(session(path)))


def properties_of_the_device() -> None:
    expected = run(session("convolution"))
    given = {"PERF_COUNT": "YES", "NPU_TURBO": "YES", "PERFORMANCE_HINT": "THROUGHPUT"}
    same(run(session("convolution", load_config=json.dumps({"NPU": given}))), expected)
    half = {"NPU": {"INFERENCE_PRECISION_HINT": "f16"}}
    found = run(session("convolution", load_config=json.dumps(half)))
    assert 0 < np.abs(found - expected).max() < 1e-2, "f16 is not the arithmetic of the device"


def reshape_input() -> None:
    assert run(session("open_dimension", reshape_input="x[3,8]")).shape == (3, 4)
    assert run(session("open_dimension", reshape_input="x[1..10,8]")).shape == (3, 4)


def enable_qdq_optimizer() -> None:
    same(run(session("int8_qdq", enable_qdq_optimizer="true")), run(session("int8_qdq")))


def refusals_have_the_driver_s_reason() -> str:
    told = ""
    try:
        session("seven_dimensions")
    except Exception as error:  # noqa: BLE001  (its class is ONNX Runtime's own)
        told = str(error)
    assert told, "a model of 7 dimensions was accepted"
    run(session("convolution"))
    return "yes" if "7 dimensions; expected at most 5" in told else "without"


ROWS: dict[str, Callable[[], str | None]] = {
    **{f"model: {name.replace('_', ' ')}": lambda name=name: is_the_cpu_device(name) for name in MODELS},  # type: ignore[misc]
    "IO binding": io_binding,
    "three sessions, six threads": several_sessions_in_threads,
    "two processes at once": processes_at_once,
    "`cache_dir`": cache_dir,
    "`ep.context_enable`, embedded": lambda: context_model("1"),
    "`ep.context_enable`, a file of its own": lambda: context_model("0"),
    "`load_config`: properties of `NPU`": properties_of_the_device,
    "`reshape_input`": reshape_input,
    "`enable_qdq_optimizer`": enable_qdq_optimizer,
    "a refusal with its reason": refusals_have_the_driver_s_reason,
}


def outcomes() -> dict[str, str]:
    """Return the outcome of each row, here in the folder; `CPU`: the provider does not take the model."""
    found = {}
    for name, check in ROWS.items():
        try:
            found[name] = check() or "yes"
        except Exception as error:  # noqa: BLE001  (whatever ONNX Runtime raises is the outcome)
            text = " ".join(str(error).split())
            found[name] = "CPU" if "fallback to" in text and "disabled" in text else "fails"
            print(f"{name}: {type(error).__name__}: {text[-300:]}", file=sys.stderr)
    return found


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Any:
    """Return the version and the outcomes of an interpreter's ONNX Runtime, with the models of a folder."""
    done = subprocess.run(
        [*command, str(Path(__file__).resolve()), "--outcomes"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}"
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str]) -> int:
    """Print the outcomes of this interpreter, or the table of the given ones."""
    if list(arguments) == ["--outcomes"]:
        import onnxruntime

        print(json.dumps([onnxruntime.__version__, outcomes()]))
        return 0
    columns = {}
    for python in arguments:
        with tempfile.TemporaryDirectory() as folder:
            write_models(Path(folder))
            version, found = measured([python], Path(folder))
            columns[version] = found
    print(f"| ONNX Runtime | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for name in ROWS:
        print(f"| {name} | {' | '.join(column[name] for column in columns.values())} |")
    return 0 if arguments else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
