"""Train the digits network and write the files of `tools/demo/data`.

Run by hand in a clone; takes seconds, and needs scikit-learn for the images. The wheel lacks it:

    python -m softnpu.tools.demo.train_digits

The same numpy on the same machine with the same number of BLAS threads writes the same bytes; otherwise the
last bits of the weights may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import openvino as ov
import typer
from numpy.typing import NDArray
from openvino import opset13 as ops
from sklearn.datasets import load_digits

from softnpu.tools.demo.digits import IMAGE_SIDE, MAX_VALUE, MODEL_FILE, TEST_SET_FILE
from softnpu.tools.demo.layers import Convolution, Dense, FloatArray, Layer, MaxPool, Relu

SEED: Final = 2024
EPOCHS: Final = 30
BATCH: Final = 32
TEST_SHARE: Final = 0.2
REQUIRED_ACCURACY: Final = 0.97
_DATA: Final = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Images:
    """`images` u8 [n, 1, 8, 8] with values 0..16 and `labels` i64 [n] with values 0..9."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Adam:
    """Kingma and Ba 2014, with the constants of the paper and a rate that may differ from step to step."""

    def __init__(self, layers: list[Layer]) -> None:
        self._layers = layers
        self._means = [[np.zeros_like(array) for array in layer.parameters] for layer in layers]
        self._squares = [[np.zeros_like(array) for array in layer.parameters] for layer in layers]
        self._steps = 0

    def step(self, rate: float) -> None:
        """Move every parameter, in place, against its layer's current gradient."""
        self._steps += 1
        scale = rate * np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        for layer, means, squares in zip(self._layers, self._means, self._squares, strict=True):
            for value, gradient, mean, square in zip(
                layer.parameters, layer.gradients, means, squares, strict=True
            ):
                mean[...] = 0.9 * mean + 0.1 * gradient
                square[...] = 0.999 * square + 0.001 * gradient * gradient
                value[...] = value - scale * mean / (np.sqrt(square) + 1e-8)


def split_digits() -> tuple[Images, Images]:
    """Return scikit-learn's 1797 digits, shuffled with the fixed seed, split for training and testing."""
    digits = load_digits()
    images = digits.images.astype(np.uint8).reshape(-1, 1, IMAGE_SIDE, IMAGE_SIDE)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(labels))
    test, training = np.split(order, [round(TEST_SHARE * len(labels))])
    return Images(images[training], labels[training]), Images(images[test], labels[test])


def train(data: Images) -> list[Layer]:
    """Return a network trained on `data` with cross entropy; its output is logits [n, 10]."""
    random = np.random.default_rng(SEED)
    layers: list[Layer] = [
        Convolution(1, 16, random),
        Relu(),
        Convolution(16, 32, random),
        Relu(),
        MaxPool(),
        Dense(32 * 4 * 4, 64, random),
        Relu(),
        Dense(64, 10, random),
    ]
    optimiser = Adam(layers)
    for epoch in range(EPOCHS):
        rate = 2e-3 * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        order = random.permutation(len(data.labels))
        losses = []
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            losses.append(_learn(layers, data.images[chosen], data.labels[chosen]))
            optimiser.step(rate)
        typer.echo(f"epoch {epoch + 1:2} of {EPOCHS}: loss {np.mean(losses):.4f}", err=True)
    return layers


def _learn(layers: list[Layer], images: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
    """Leave the gradients of one batch in the layers; return its mean cross entropy, in nats."""
    value: FloatArray = images.astype(np.float32) / np.float32(MAX_VALUE)
    for layer in layers:
        value = layer.forward(value)
    shares = np.exp(value - value.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.log(shares[rows, labels] + 1e-12).mean())
    gradient = shares
    gradient[rows, labels] -= 1
    gradient /= len(labels)
    for layer in reversed(layers):
        gradient = layer.backward(gradient)
    return loss


def to_model(layers: list[Layer]) -> ov.Model:
    """Chain scaling, the network, softmax: `image` f32 [1, 1, 8, 8] -> `probabilities` f32 [1, 10]."""
    image = ops.parameter([1, 1, IMAGE_SIDE, IMAGE_SIDE], ov.Type.f32, name="image")
    image.output(0).set_names({"image"})
    scale = ops.constant(np.array(1 / MAX_VALUE, dtype=np.float32), name="scale/factor")
    value = ops.multiply(image, scale, name="scale")
    for number, layer in enumerate(layers, start=1):
        value = layer.to_openvino(value, f"{type(layer).__name__.lower()}_{number}")
    probabilities = ops.softmax(value, 1, name="softmax")
    probabilities.output(0).set_names({"probabilities"})
    return ov.Model([ops.result(probabilities, name="probabilities")], [image], "digits")


def accuracy(model: ov.Model, data: Images) -> float:
    """Return the model's accuracy on `data` on OpenVINO's CPU device in f32, one image at a time."""
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    predicted = [int(compiled(image[None].astype(np.float32))[0].argmax()) for image in data.images]
    return float(np.mean(np.array(predicted) == data.labels))


def main(out: Annotated[Path, typer.Option(help="The directory for the three files.")] = _DATA) -> None:
    """Train, check the accuracy, write the model and the test set."""
    training, test = split_digits()
    model = to_model(train(training))
    reached = accuracy(model, test)
    typer.echo(f"accuracy on {len(test.labels)} held-out images: {reached:.4f}", err=True)
    if reached < REQUIRED_ACCURACY:
        typer.echo(f"that is below {REQUIRED_ACCURACY}; nothing was written", err=True)
        raise typer.Exit(1)
    out.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, out / MODEL_FILE, compress_to_fp16=False)
    np.savez_compressed(out / TEST_SET_FILE, images=test.images, labels=test.labels.astype(np.uint8))


if __name__ == "__main__":
    typer.run(main)
