"""Defects to seed into the product, to prove that random models find them.

A defect replaces source text of one module, when a process imports it: `environment` has a folder for
PYTHONPATH that does so in the daemon, its engines, its compilers and the clients.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

_ENV = "SOFTNPU_FUZZ_DEFECT"
_SITE = f"""
import importlib.machinery, json, os, sys

DEFECT = json.loads(os.environ["{_ENV}"])


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != DEFECT["module"]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        source = spec.loader.get_source(name)
        assert source.count(DEFECT["old"]) == 1, "the defect does not apply to " + name
        code = compile(source.replace(DEFECT["old"], DEFECT["new"]), spec.origin, "exec")
        spec.loader.exec_module = lambda module: exec(code, module.__dict__)
        return spec


sys.meta_path.insert(0, Finder)
"""


@dataclass(frozen=True)
class Defect:
    """Its module, the replaced text, and the ways of running models that reveal it."""

    part: str
    module: str
    old: str
    new: str
    ways: tuple[str, ...] = ()

    @property
    def applies(self) -> bool:
        """Whether the source contains the replaced text exactly once."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            return False
        return Path(spec.origin).read_text().count(self.old) == 1

    def environment(self, folder: Path) -> dict[str, str]:
        """Return variables for processes that shall have it."""
        (folder / "sitecustomize.py").write_text(_SITE)
        told = {"module": self.module, "old": self.old, "new": self.new}
        return {"PYTHONPATH": str(folder), _ENV: json.dumps(told)}


_OPENVINO, _COMPILER, _PLUGIN = "softnpu.emulator.openvino", "softnpu.emulator.compiler", "softnpu.plugin"

DEFECTS = {
    "copies are left out in short inferences": Defect(
        "executor",
        f"{_OPENVINO}.binding",
        """            if self._copies:
                self._finish_copies()
            return True
        started,""",
        """            return True
        started,""",
        ("plugin:plain/inplace", "plugin:plain/many"),
    ),
    "what is to begin early is only taken for begun": Defect(
        "overlap",
        f"{_OPENVINO}.binding",
        """        self._request.start_async()
        self._started = True""",
        """        self._started = True""",
        ("plugin:throughput/many", "plugin:throughput/queue"),
    ),
    "what was begun early is not waited for": Defect(
        "overlap",
        f"{_OPENVINO}.binding",
        """        if not started:
            self._request.start_async()
        try:""",
        """        if started:
            return True
        self._request.start_async()
        try:""",
        ("plugin:throughput/many", "plugin:throughput/queue"),
    ),
    "the third sample of a batch is the first": Defect(
        "batch",
        f"{_PLUGIN}.requests.batch_slots",
        "ctypes.data + sample * self.port.per_sample",
        "ctypes.data + (sample & ~2) * self.port.per_sample",
        ("plugin:split/",),
    ),
    "all samples go to the place of the first": Defect(
        "batch",
        f"{_PLUGIN}.requests.batch_execution",
        "slot.part(sample) if",
        "slot.part(0 if slot in self._results else sample) if",
        ("plugin:split/",),
    ),
    "states do not go on": Defect(
        "states",
        f"{_PLUGIN}.requests.states",
        "            self.turn = 1 - self.turn",
        "            pass",
        ("plugin:plain/one", "plugin:plain/inplace"),
    ),
    "states begin as zeros": Defect(
        "states",
        f"{_PLUGIN}.requests.states",
        "memory.fill(pattern[0] if pattern else 0)",
        "memory.fill(0)",
        ("plugin:plain/one", "plugin:plain/fresh"),
    ),
    "a new shape of an input is not seen": Defect(
        "dynamic shapes",
        f"{_OPENVINO}.dynamic.binding",
        "        if shapes != self._shapes:\n            self._shapes = []",
        "        if not self._shapes:\n            self._shapes = []",
        ("plugin:compiler/one", "plugin:compiler/inplace"),
    ),
    "a result that shrinks keeps its old shape": Defect(
        "dynamic shapes",
        f"{_PLUGIN}.requests.dynamic_tensors",
        "        if self.shape != shape:\n            try:",
        "        if math.prod(self.shape) < math.prod(shape):\n            try:",
        ("plugin:compiler/one", "plugin:compiler/inplace"),
    ),
    "constants that begin alike are one": Defect(
        "weights",
        f"{_COMPILER}.digests",
        "view[offset : offset + length]",
        "view[offset : offset + min(length, 4)]",
        ("plugin:plain/one",),
    ),
    "constants of one length are one, when they are looked for": Defect(
        "weights",
        f"{_PLUGIN}.exported.weights_source",
        """        entry = pool.named(constant.name, constant.length) or pool.with_digest(
            constant.digest, constant.length
        )
""",
        """        entry = next((one for one in pool.entries if one.length == constant.length), None)
""",
        ("plugin:weightless/",),
    ),
    "the weights of a file are looked for one place on": Defect(
        "weights",
        "softnpu.emulator.blob.weights",
        "        actual[constant.offset] = offset\n",
        "        actual[constant.offset] = offset + 4 * space.holds(offset + 4, constant.length)\n",
        ("plugin:weightless file/one", "plugin:file/one"),
    ),
    "outputs that share a tensor with an input are bound": Defect(
        "regression: outputs that are inputs",
        f"{_OPENVINO}.defects.shared_tensors",
        "    return shared",
        "    return {}",
        ("plugin:plain/one",),
    ),
    "an output that is an input is converted to its own type": Defect(
        "regression: 64 bits that pass through",
        f"{_COMPILER}.canonical",
        '    with ThreadPoolExecutor(1, "constants") as pool:\n',
        """    from openvino import opset13
    for result in model.get_results():
        source = result.input_value(0)
        if source.get_node().get_type_name() == "Parameter":
            copy = opset13.convert(source, source.get_element_type())
            result.input(0).replace_source_output(copy.output(0))
    with ThreadPoolExecutor(1, "constants") as pool:
""",
        ("plugin:plain/one",),
    ),
    "an empty constant has to have no byte in the XML": Defect(
        "regression: empty constants",
        f"{_COMPILER}.constants",
        "if size != node.length and (node.length or size != _SIZE_OF_NOTHING):",
        "if size != node.length:",
        ("plugin:plain/one",),
    ),
}
