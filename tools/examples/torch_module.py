"""A PyTorch module on the emulated NPU: compiled once, saved, and run where torch is not installed.

The second half of this program is another process, which cannot import torch: it loads the file and computes,
and the numbers are compared with torch's.

    pip install 'softnpu[torch]'
    python -m softnpu.tools.examples.torch_module
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from softnpu.plugin import ModelError
from softnpu.plugin import torch as npu

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import numpy as np
from softnpu.plugin import torch as npu
folder = sys.argv[1]
module = npu.load(f"{folder}/module.blob")
images = np.load(f"{folder}/images.npy")
scores = [module(image[np.newaxis], scale=0.5)["scores"] for image in images]
np.save(f"{folder}/scores.npy", np.concatenate(scores))
"""


def main() -> int:
    try:
        import torch
    except ImportError:
        print("this example needs torch: pip install 'softnpu[torch]'")
        return 1
    module = make_module(torch)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    # Traces the module with example arguments, in eval mode. Numbers such as `scale` are part of the trace.
    compiled = npu.compile(module, images[:1], example_kwargs={"scale": 0.5})
    model = compiled.compiled_model
    print(f"compiled {compiled} in {model.compile_ms:.0f} ms, loaded in {model.load_ms:.0f} ms")

    # Call it like the module; it returns what the module returns.
    with torch.no_grad():
        expected = module.eval()(images[:1], scale=0.5)
    results = compiled(images[:1], scale=0.5)
    close = torch.allclose(results["scores"], expected["scores"], rtol=1e-4, atol=1e-5)
    print(f"returns {sorted(results)}, close to torch: {close}")

    # A tensor in device memory is passed without a copy.
    place = compiled.new_input("image")
    place[:] = images[:1]
    before = model.staged_bytes
    same = torch.equal(compiled(place, scale=0.5)["scores"], results["scores"])
    print(f"the same from device memory: {same}, bytes copied: {model.staged_bytes - before}")
    right = close and same and model.staged_bytes == before
    return 0 if right and saved(torch, module, compiled, images) else 1


def saved(torch: Any, module: Any, compiled: npu.CompiledModule, images: Any) -> bool:
    """Return whether a process without torch computes torch's numbers from the file."""
    with tempfile.TemporaryDirectory(prefix="softnpu-example-") as folder:
        file = Path(folder) / "module.blob"
        compiled.save(file)
        print(f"saved in one file: {file.stat().st_size // 1024} KiB")
        np.save(f"{folder}/images.npy", images.numpy())
        subprocess.run([sys.executable, "-c", WITHOUT_TORCH, folder], check=True)
        scores = torch.from_numpy(np.load(f"{folder}/scores.npy"))
    with torch.no_grad():
        expected = module(images, scale=0.5)["scores"]
    close = bool(torch.allclose(scores, expected, rtol=1e-4, atol=1e-5))
    print(f"{len(images)} images in a process without torch, close to torch: {close}")
    return close


def make_module(torch: Any) -> Any:
    """Return a small convolutional network with fixed random weights."""
    nn = torch.nn
    base: Any = nn.Module

    class Network(base):  # type: ignore[misc]
        """Maps a picture to scores of ten classes and features."""

        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()
            )
            self.classes = nn.Linear(32, 10)

        def forward(self, image: Any, scale: float = 1.0) -> dict[str, Any]:
            features = self.features(image).mean((2, 3))
            return {"scores": self.classes(features) * scale, "features": features}

    torch.manual_seed(0)
    return Network()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModelError as error:
        sys.exit(str(error))
