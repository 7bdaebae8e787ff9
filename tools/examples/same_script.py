"""One application for OpenVINO on a CPU and for the emulated NPU: import and device name are all that differ.

    python -m softnpu.tools.examples.same_script --with openvino --device CPU
    python -m softnpu.tools.examples.same_script --with softnpu.plugin --device NPU

Every number that it computes goes into `--save FILE.npz`, so that two runs can be compared.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from softnpu.tools.demo.digits import load_test_set, model_path

Arrays = dict[str, npt.NDArray[Any]]
IMAGES = 64
IN_FLIGHT = 4


class Application:
    """Classifies digits. `ov` is the module of a program's `import ... as ov`."""

    def __init__(self, ov: Any, device: str) -> None:
        self.ov = ov
        self.device = device
        self.core = ov.Core()
        self.numbers: Arrays = {}
        images, self.labels = load_test_set()
        # in camera format: bytes, the channel last
        self.images = images[:IMAGES].astype(np.uint8).transpose(0, 2, 3, 1)[:, None]

    def run(self) -> None:
        """Run every step, in a program's usual order."""
        hint, core = self.ov.properties.hint, self.core
        core.set_property(self.device, {hint.inference_precision: self.ov.Type.f32})
        core.set_property(self.device, {hint.performance_mode: hint.PerformanceMode.LATENCY})
        model = self.preprocessed()
        supported = core.query_model(model, self.device)
        print("operations supported:", len(supported), "of", len(model.get_ops()))
        compiled = core.compile_model(model, self.device, {self.ov.properties.enable_profiling: True})
        print("performance hint:", core.get_property(self.device, hint.performance_mode).name)
        print("model:", compiled.get_property(self.ov.properties.model_name))
        self.synchronously(compiled)
        self.by_tensors(compiled)
        self.with_callback(compiled)
        self.in_a_queue(core.compile_model(model, self.device, {hint.performance_mode: "THROUGHPUT"}))
        self.exported(compiled)
        self.built_here()

    def preprocessed(self) -> Any:
        """Return the file's model, with image conversion before it and the label after it."""
        from_file = self.core.read_model(model_path())
        steps = self.ov.preprocess.PrePostProcessor(from_file)
        steps.input().tensor().set_element_type(self.ov.Type.u8).set_layout(self.ov.Layout("NHWC"))
        steps.input().model().set_layout(self.ov.Layout("NCHW"))
        return steps.build()

    def synchronously(self, compiled: Any) -> None:
        """Run an inference with each way to name an input and an output."""
        image, port = self.images[0], compiled.input(0)
        for number, inputs in enumerate((image, [image], {0: image}, {port.any_name: image}, {port: image})):
            results = compiled(inputs)
            self.numbers[f"sync {number}"] = results[0]
        for key in (0, "probabilities", compiled.output(0), compiled.outputs[0]):
            assert np.array_equal(results[key], results.to_tuple()[0])
        request = compiled.create_infer_request()
        view = request.infer({"image": self.images[1]}, share_inputs=True, share_outputs=True)[
            "probabilities"
        ]
        self.numbers["shared"] = view.copy()
        layers = [layer for layer in request.get_profiling_info() if layer.real_time.total_seconds() > 0]
        print("profile: layers that ran:", bool(layers), "latency known:", request.latency > 0)

    def by_tensors(self, compiled: Any) -> None:
        """Infer with the program's tensors, and with the request's."""
        ov, request = self.ov, compiled.create_infer_request()
        given, outcome = ov.Tensor(self.images[2].copy()), ov.Tensor(ov.Type.f32, ov.Shape([1, 10]))
        request.set_input_tensor(given)
        request.set_output_tensor(0, outcome)
        request.infer()
        self.numbers["own tensors"] = outcome.data.copy()
        request = compiled.create_infer_request()
        request.get_tensor("image").data[:] = self.images[3]
        request.start_async()
        while not request.wait_for(1000):
            print("still waiting")
        self.numbers["tensors of the request"] = request.get_output_tensor(0).data.copy()

    def with_callback(self, compiled: Any) -> None:
        """Run one request whose callback notes the results."""
        request = compiled.create_infer_request()

        def done(name: str) -> None:
            self.numbers[name] = request.results["probabilities"].copy()

        request.set_callback(done, "callback 1")
        request.start_async([self.images[4]])
        request.wait()
        request.start_async([self.images[5]], "callback 2")
        request.wait()

    def in_a_queue(self, compiled: Any) -> None:
        """Run all images through concurrent requests."""
        results = np.zeros((IMAGES, 10), np.float32)

        def done(request: Any, number: int) -> None:
            results[number] = request.get_output_tensor().data[0]

        queue = self.ov.AsyncInferQueue(compiled, IN_FLIGHT)
        queue.set_callback(done)
        for number, image in enumerate(self.images):
            queue.start_async({"image": image}, userdata=number)
        queue.wait_all()
        self.numbers["queue"] = results
        right = int((results.argmax(axis=1) == self.labels[:IMAGES]).sum())
        print(f"queue of {len(queue)}: {right} of {IMAGES} digits recognised")

    def exported(self, compiled: Any) -> None:
        """Export the compiled model to bytes and import it."""
        stream = io.BytesIO()
        compiled.export_model(stream)
        again = self.core.import_model(stream.getvalue(), self.device)
        self.numbers["imported"] = again(self.images[6])["probabilities"]

    def built_here(self) -> None:
        """Build a model here, save and reread it, reshape it and compile it in one call."""
        ov = self.ov
        ops = ov.opset13
        data = ops.parameter(ov.PartialShape([-1, 3]), ov.Type.f32, name="data")
        scaled = ops.multiply(ops.tanh(data), ops.constant(np.array([1, 2, 3], np.float32)))
        scaled.output(0).set_names({"scaled"})
        model = ov.Model([ops.result(scaled), ops.result(ops.reduce_sum(scaled, 1))], [data], "built here")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "built.xml"
            ov.save_model(model, path, compress_to_fp16=False)
            read = self.core.read_model(path)
        read.reshape([5, 3])
        config = {ov.properties.hint.inference_precision: "f32"}
        compiled = ov.compile_model(read, self.device, config)
        values = np.linspace(-2, 2, 15, dtype=np.float32).reshape(5, 3)
        scaled_values, sums = compiled(values).values()
        self.numbers["built: scaled"], self.numbers["built: sums"] = scaled_values, sums


def main(arguments: list[str]) -> int:
    """Run the application; save the numbers if a file is given."""
    parser = argparse.ArgumentParser(prog="same_script", description=__doc__.splitlines()[0])
    parser.add_argument("--with", dest="module", default="softnpu.plugin", help="openvino or softnpu.plugin")
    parser.add_argument("--device", default="NPU", help="CPU or NPU")
    parser.add_argument("--save", type=Path, help="a file for the numbers, such as numbers.npz")
    chosen = parser.parse_args(arguments)
    application = Application(importlib.import_module(chosen.module), chosen.device)
    application.run()
    print("arrays computed:", len(application.numbers))
    if chosen.save:
        np.savez(chosen.save, allow_pickle=False, **application.numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
