"""Ten models on the NPU by each release of OpenVINO and on each platform, bit by bit: the table.

    python -m tests.native.release_models PYTHON...     # one interpreter for each release

prints the table of docs/native.md. What is expected comes from the CPU device of this interpreter's OpenVINO.
The file is a program of its own as well, for interpreters that have OpenVINO but nothing of softnpu: it
prints the models of a folder that give other numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

PLATFORMS = ("3720", "4000", "5010", "5020")
Built = tuple[list[Any], list[Any]]
_RANDOM = np.random.default_rng(7)


def _weights(*shape: int) -> Any:
    return ov.opset8.constant(_RANDOM.normal(0, 0.3, shape).astype(np.float32))


def _input(*shape: int, kind: Any = np.float32) -> Any:
    return ov.opset8.parameter(list(shape), kind)


def _convolution() -> Built:
    image = _input(1, 3, 32, 32)
    layer = ov.opset8.convolution(image, _weights(8, 3, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1])
    return [ov.opset8.reduce_mean(ov.opset8.relu(layer), ov.opset8.constant([2, 3]), True)], [image]


def _separable() -> Built:
    image = _input(1, 8, 16, 16)
    deep = ov.opset8.group_convolution(image, _weights(8, 1, 1, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])
    return [
        ov.opset8.convolution(ov.opset8.hswish(deep), _weights(4, 8, 1, 1), [1, 1], [0, 0], [0, 0], [1, 1])
    ], [image]


def _transposed() -> Built:
    image = _input(1, 4, 8, 8)
    grown = ov.opset8.convolution_backprop_data(
        image, _weights(4, 2, 2, 2), [2, 2], pads_begin=[0, 0], pads_end=[0, 0]
    )
    return [ov.opset8.sigmoid(grown)], [image]


def _perceptron() -> Built:
    data = _input(1, 40)
    hidden = ov.opset8.gelu(ov.opset8.matmul(data, _weights(40, 24), False, False), "erf")
    return [ov.opset8.softmax(ov.opset8.matmul(hidden, _weights(24, 10), False, False), 1)], [data]


def _half_weights() -> Built:
    data = _input(1, 32)
    half = ov.opset8.constant(_RANDOM.normal(0, 0.3, (32, 16)).astype(np.float16))
    return [ov.opset8.matmul(data, ov.opset8.convert(half, "f32"), False, False)], [data]


def _recurrent() -> Built:
    data = _input(1, 6, 5)
    states = [ov.opset8.constant(np.zeros((1, 1, 8), np.float32)) for _ in range(2)]
    lengths = ov.opset8.constant(np.array([6], np.int32))
    sequence = ov.opset8.lstm_sequence(
        data, *states, lengths, _weights(1, 32, 5), _weights(1, 32, 8), _weights(1, 32), 8, "forward"
    )
    return list(sequence.outputs()), [data]


def _attention() -> Built:
    queries, keys = _input(1, 12, 16), _input(1, 12, 16)
    scores = ov.opset8.softmax(ov.opset8.matmul(queries, keys, False, True), 2)
    return [ov.opset8.matmul(scores, keys, False, False)], [queries, keys]


def _normalised() -> Built:
    data = _input(1, 9, 16)
    normal = ov.opset8.mvn(data, ov.opset8.constant([2]), True, 1e-5, "inside_sqrt")
    return [ov.opset8.add(ov.opset8.multiply(normal, _weights(16)), _weights(16))], [data]


def _embedded() -> Built:
    ids = _input(1, 10, kind=np.int64)
    return [ov.opset8.gather(_weights(50, 12), ids, ov.opset8.constant(0))], [ids]


def _open_size() -> Built:
    data = ov.opset8.parameter(ov.PartialShape([1, ov.Dimension(1, 24)]), np.float32)
    return [ov.opset8.tanh(data), ov.opset8.reduce_sum(data, ov.opset8.constant([1]), True)], [data]


MODELS: dict[str, Callable[[], Built]] = {
    "convolution": _convolution, "separable convolution": _separable, "transposed convolution": _transposed,
    "perceptron": _perceptron, "weights of f16": _half_weights, "LSTM": _recurrent, "attention": _attention,
    "normalisation": _normalised, "embedding": _embedded, "open size": _open_size,
}  # fmt: skip


def write(folder: Path, properties: dict[str, str]) -> None:
    """Write each model, its inputs, and what the CPU device makes of them."""
    core = ov.Core()
    for number, (name, build) in enumerate(MODELS.items()):
        outputs, parameters = build()
        model = ov.Model([ov.opset8.result(each) for each in outputs], parameters, name)
        ov.save_model(model, folder / f"{number}.xml", compress_to_fp16=False)
        inputs = [
            _RANDOM.integers(0, 50, port.partial_shape.get_max_shape())
            if port.element_type == ov.Type.i64
            else _RANDOM.normal(size=port.partial_shape.get_max_shape()).astype(np.float32)
            for port in model.inputs
        ]
        compiled = core.compile_model(core.read_model(folder / f"{number}.xml"), "CPU", properties)
        expected = list(compiled(inputs).values())
        np.savez(folder / f"{number}.npz", *inputs, **{f"out{at}": each for at, each in enumerate(expected)})


def wrong(folder: Path) -> dict[str, str]:
    """Return the models of a folder that the NPU refuses or computes otherwise, with its defaults."""
    core, found = ov.Core(), {}
    for path in sorted(folder.glob("*.xml")):
        model = core.read_model(str(path))
        with np.load(path.with_suffix(".npz")) as arrays:
            inputs = [arrays[f"arr_{at}"] for at in range(len(model.inputs))]
            expected = [arrays[f"out{at}"] for at in range(len(model.outputs))]
        try:
            results = list(core.compile_model(model, "NPU")(inputs).values())
        except RuntimeError as error:
            found[model.friendly_name] = str(error).splitlines()[-1]
            continue
        same = [a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(results, expected)]  # noqa: B905
        if not all(same):
            found[model.friendly_name] = "other numbers"
    return found


def judged(command: Sequence[Any], folder: Path, **options: Any) -> tuple[str, dict[str, str]]:
    """Return the release of an interpreter's OpenVINO, and its wrong models."""
    done = subprocess.run(
        [*command, "-P", __file__, "--folder", folder],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    release, found = json.loads(done.stdout.splitlines()[-1])
    return str(release), dict(found)


def main(arguments: Sequence[str]) -> None:
    """Print the wrong models of a folder, or the table for these interpreters."""
    if arguments[0] == "--folder":
        print(json.dumps([ov.get_version().split("-")[0], wrong(Path(arguments[1]))]))
        return
    from tests.native.conftest import CPU

    print(f"| OpenVINO | {' | '.join(PLATFORMS)} |\n| --- |{' --- |' * len(PLATFORMS)}")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), CPU)
        for python in arguments:
            cells = []
            for platform in PLATFORMS:
                run = [
                    Path(sys.executable).parent / "softnpu",
                    "run",
                    "--private",
                    "--platform",
                    platform,
                    "--",
                    python,
                ]
                release, found = judged(run, Path(folder))
                cells.append(f"{len(MODELS) - len(found)} of {len(MODELS)}")
                for name, reason in found.items():
                    print(release, platform, name, reason, file=sys.stderr)
            print(f"| {release} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
