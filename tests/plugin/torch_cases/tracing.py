"""Tracing modules for the device: numbers, the module afterwards, weights, and what cannot be traced."""

# mypy: allow-subclassing-any
from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import psutil
import pytest
import torch
from torch import nn

from softnpu.plugin import Core, ModelError, NpuError
from softnpu.plugin import torch as npu
from softnpu.plugin.torch.tracing import trace
from tests.plugin.torch_cases.modules import Convolutions, Encoder, Passing, Summed, in_torch

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def test_a_layer_of_a_transformer_has_the_numbers_of_torch(shared_core: Core) -> None:
    module = Encoder()
    ids, mask = torch.randint(0, 50, (2, 7)), torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 4:] = True
    compiled = npu.compile(module, (ids, mask), core=shared_core)
    expected = in_torch(module, ids, mask)
    found = compiled(ids, mask)
    assert list(found) == ["hidden", "pooled"]
    torch.testing.assert_close(found["pooled"], expected["pooled"], **CLOSE)


def test_results_equal_openvinos_cpu_device_bit_for_bit(shared_core: Core) -> None:
    module, image = Convolutions(), torch.rand(1, 3, 8, 8)
    compiled = npu.compile(module, image, core=shared_core)
    traced = trace(module, (image,), {}, {})
    host = ov.Core().compile_model(
        traced.model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    )
    np.testing.assert_array_equal(compiled(image).numpy(), host([image.numpy()])[0])


@pytest.mark.parametrize("given", ["array", "list", "mapping"])
def test_examples_come_in_several_forms(shared_core: Core, given: str) -> None:
    module, image = Convolutions(), torch.rand(1, 3, 8, 8)
    examples: dict[str, Any] = {"array": image.numpy(), "list": [image], "mapping": {"image": image}}
    compiled = npu.compile(module, examples[given], core=shared_core)
    assert compiled.input_names == ["image"]
    torch.testing.assert_close(compiled(image=image), in_torch(module, image), **CLOSE)


def test_a_module_is_traced_in_eval_mode_and_left_unchanged(shared_core: Core) -> None:
    module = Convolutions()
    module.train()
    module.first.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    image = torch.rand(1, 3, 8, 8)
    compiled = npu.compile(module, image, core=shared_core)
    assert torch.equal(compiled(image), compiled(image))
    assert [part.training for part in (module, module.first, module.drop)] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_all_weights_are_those_of_the_module_and_no_process_is_started() -> None:
    module = Convolutions()
    children = psutil.Process().children()
    traced = trace(module, (torch.rand(1, 3, 8, 8),), {}, {})
    assert psutil.Process().children() == children
    addresses = {op.data.ctypes.data for op in traced.model.get_ops() if op.get_type_name() == "Constant"}
    weights = [*module.parameters(), module.norm.running_mean, module.norm.running_var]
    assert [weight for weight in weights if weight.data_ptr() not in addresses] == []


def test_inputs_among_the_outputs_and_unused_inputs_are_preserved(shared_core: Core) -> None:
    compiled = npu.compile(Passing(), (torch.zeros(4), torch.zeros(2)), core=shared_core)
    for value in (1.0, 2.0):
        x = torch.full((4,), value)
        same, more, again, table = compiled(x, torch.ones(2))
        assert torch.equal(same, x)
        assert torch.equal(more, x + 1)
        assert torch.equal(again, x)
        assert torch.equal(table, torch.arange(4.0))


@pytest.mark.parametrize("traced", [1, 3])
def test_one_compilation_accepts_every_number_of_rows_within_the_bounds(
    shared_core: Core, traced: int
) -> None:
    dynamic = {"left": {0: (1, 8)}, "right": {0: (1, 8)}}
    example = torch.rand(traced, 4)
    compiled = npu.compile(Summed(), (example, example), dynamic=dynamic, core=shared_core)
    ports = [*compiled.compiled_model.inputs, compiled.compiled_model.output(0)]
    assert [str(port.partial_shape) for port in ports] == ["[1..8,4]", "[1..8,4]", "[1..8,8]"]
    for rows in (1, 3, 8, 2):
        left, right = torch.rand(rows, 4), torch.rand(rows, 4)
        joined, count = compiled(left, right)
        assert (count, type(count)) == (rows, int)
        assert torch.equal(joined, torch.cat([left, right], 1) * 2)
    with pytest.raises(NpuError, match=r"left.*1\.\.8"):
        compiled(torch.rand(9, 4), torch.rand(9, 4))


class Branching(nn.Module):
    """Branches on a value."""

    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Counting(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


class Writing(nn.Module):
    """Writes into its argument."""

    def forward(self, x: Any) -> Any:
        x += 1
        return x * 2


class Spectral(nn.Module):
    """Has an operation that OpenVINO lacks."""

    def forward(self, x: Any) -> Any:
        return torch.linalg.eigvalsh(x)


class Silent(nn.Module):
    """Returns no tensor."""

    def forward(self, x: Any) -> Any:
        return x.shape[0] and None


class Odd(nn.Module):
    """Returns something that cannot be represented."""

    def forward(self, x: Any) -> Any:
        return {"x": x, "kind": x.dtype}


class Raising(nn.Module):
    """Raises its own error."""

    def forward(self, x: Any) -> Any:
        return x @ torch.ones(7, 7)


@pytest.mark.parametrize(
    ("module", "found", "expected"),
    [
        (Branching(), r"tracing\.py:\d+ \(return x if x\.sum\(\) > 0", "control flow .* torch.where"),
        (Counting(), "it changes 'calls' in place", "give them as arguments"),
        (Writing(), "it changes 'x' in place", "neither its buffers nor its arguments"),
        (Spectral(), r"aten\._linalg_eigh", "operations that OpenVINO has"),
        (Silent(), "no tensor in it", "one tensor"),
        (Odd(), "result 'kind': dtype", "tensors, None"),
        (Raising(), r"tracing\.py:\d+ \(return x @ torch", "a module that torch.export accepts"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_an_untraceable_module_is_refused_with_the_reason(
    shared_core: Core, module: nn.Module, found: str, expected: str
) -> None:
    with pytest.raises(
        ModelError, match=f"(?s)module '{type(module).__name__}', .*{found}.*expected.*{expected}"
    ):
        npu.compile(module, torch.rand(3, 3), core=shared_core)


def test_non_modules_and_misfitting_arguments_are_named(shared_core: Core) -> None:
    image = torch.rand(1, 3, 8, 8)
    scripted = torch.jit.script(nn.Linear(2, 2))
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
        ("model.pt", (image,), {}, "str given; expected a torch.nn.Module"),
        (torch.sin, (image,), {}, "expected a torch.nn.Module"),
        (scripted, (image,), {}, "RecursiveScriptModule given; expected a torch.nn.Module"),
        (None, (), {}, "missing a required argument: 'image'; expected arguments for"),
        (None, (1, 2), {}, "too many positional arguments"),
        (None, (object(),), {}, "argument 'image': object; expected tensors, None"),
        (None, ([{"a": object()}],), {}, "argument 'image.0.a': object"),
        (None, (image,), {"x": {0: 8}}, "dynamic 'x': no tensor of this name among the arguments"),
        (None, (image,), {"image": {4: 8}}, "dynamic 'image': axis 4; expected an axis from 0 to 3"),
        (None, (image,), {"image": {0: (5, 2)}}, r"\(5, 2\); expected None, MAX or"),
        (None, (image,), {"image": {1: 8}}, "expected dynamic dimensions"),
    ]
    for module, args, dynamic, said in cases:
        with pytest.raises(ModelError, match=said):
            npu.compile(module or Convolutions(), args, dynamic=dynamic, core=shared_core)
