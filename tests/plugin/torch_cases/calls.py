"""Calling a compiled module: arguments, results and copies."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from softnpu.plugin import Core, InputError
from softnpu.plugin import torch as npu
from softnpu.plugin.torch import CompiledModule
from tests.plugin.torch_cases.modules import (
    KINDS,
    Arguments,
    Boxes,
    Convolutions,
    Detections,
    Detector,
    Kinds,
    Wide,
    in_torch,
)

X, Y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])


def arguments(core: Core, *args: Any, **kwargs: Any) -> CompiledModule:
    return npu.compile(Arguments(), args, example_kwargs=kwargs, core=core)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, 3.0), {}),
        ((X,), {"scale": 3.0}),
        ((X, 2.0, Y, Y), {}),
        ((X, 0.5, Y), {"mask": Y, "left": Y, "right": X}),
    ],
)
def test_arguments_of_every_kind_work_as_in_the_module(shared_core: Core, args: Any, kwargs: Any) -> None:
    compiled = arguments(shared_core, *args, **kwargs)
    assert torch.equal(compiled(*args, **kwargs), in_torch(Arguments(), *args, **kwargs))


def test_arguments_that_differ_from_the_trace_are_named(shared_core: Core) -> None:
    compiled = arguments(shared_core, X)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "module 'Arguments': missing a required argument: 'x'; expected"),
        ((X, 3.0), {}, "argument 'scale': 3.0 given; expected 2.0, with which the module was traced"),
        ((X, 2), {}, "argument 'scale': 2 given; expected 2.0"),
        ((X, 2.0, Y), {}, "argument 'more': tuple of 1 given; expected a sequence of 0"),
        ((X,), {"left": Y}, "argument 'named': dict with 'left' given; expected a mapping with nothing"),
        ((X,), {"mask": Y}, "argument 'mask': Tensor given; expected None, with which"),
        ((X,), {"kind": torch.float64}, "argument 'kind': dtype given; expected it left out"),
        ((1.0,), {}, r"argument 'x': float given; expected a tensor of f32\[3\]"),
        (([1.0, 2.0, 3.0],), {}, "argument 'x': list given"),
        ((X.double(),), {}, r"argument 'x': f64\[3\] given; expected f32\[3\]"),
        ((X.numpy().astype(np.int32),), {}, r"argument 'x': i32\[3\] given"),
        ((X.to(torch.complex64),), {}, r"argument 'x': complex64\[3\] given"),
        ((X[:2],), {}, r"f32\[2\] given; expected f32\[3\]"),
    ]
    for args, kwargs, said in cases:
        with pytest.raises(InputError, match=said):
            compiled(*args, **kwargs)
        assert torch.equal(compiled(X), X * 2)


def test_containers_match_those_of_the_module(shared_core: Core) -> None:
    left, right = torch.rand(2, 4), torch.rand(2, 4)
    batch = {"left": left, "pair": (right, 2)}
    compiled = npu.compile(Detector(), (batch,), core=shared_core)
    assert compiled.input_names == ["batch.left", "batch.pair.0"]
    found, expected = compiled({"pair": [right, 2], "left": left}), in_torch(Detector(), batch)
    assert type(found) is Detections
    assert type(found.boxes) is Boxes
    assert type(found.features) is list
    assert type(found.features[1]) is tuple
    assert found.features[1][1] is None
    assert type(found.labels["best"]) is type(expected.labels["best"])
    assert torch.equal(found.features[0], left * 2)
    assert torch.equal(found.labels["best"].indices, expected.labels["best"].indices)
    assert torch.equal(found.labels[3], expected.labels[3])
    assert torch.equal(found.boxes.scores, expected.boxes.scores)
    assert (found.count, found.note) == (7, None)
    for wrong, said in [
        ({"left": left}, r"argument 'batch': dict with 'left' given; expected a mapping with 'left', 'pair'"),
        ({"left": left, "pair": right}, "argument 'batch.pair': Tensor given; expected a sequence of 2"),
        ({"left": left, "pair": (right, 3)}, r"argument 'batch.pair.1': 3 given; expected 2"),
        ([left, right], "argument 'batch': list of 2 given; expected a mapping"),
    ]:
        with pytest.raises(InputError, match=said):
            compiled(wrong)


def test_numpy_in_is_numpy_out_and_torch_in_is_torch_out(shared_core: Core) -> None:
    compiled = arguments(shared_core, X, 2.0, Y)
    assert isinstance(compiled(X, 2.0, Y), torch.Tensor)
    assert isinstance(compiled(X.numpy(), 2.0, Y), torch.Tensor)
    plain = compiled(X.numpy(), 2.0, Y.numpy())
    assert type(plain) is np.ndarray
    np.testing.assert_array_equal(plain, (X * 2 + Y).numpy())


def test_every_element_type_is_returned_and_bf16_is_f32_in_numpy(shared_core: Core) -> None:
    x = torch.tensor([0.0, 1.0, 2.5, 100.0])
    compiled = npu.compile(Kinds(), x, core=shared_core)
    found, expected = compiled(x), in_torch(Kinds(), x)
    assert [value.dtype for value in found] == [value.dtype for value in expected] == KINDS
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    in_numpy = compiled(x.numpy())[KINDS.index(torch.bfloat16)]
    assert in_numpy.dtype == np.float32
    np.testing.assert_array_equal(in_numpy, x.bfloat16().float().numpy())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_every_element_type_is_accepted(shared_core: Core, kind: Any) -> None:
    x = torch.tensor([[0, 1, 3]]).to(kind)
    compiled = npu.compile(Kinds(), x, core=shared_core)
    assert torch.equal(compiled(x)[0], x.float())
    place = compiled.new_input("x")
    assert place.dtype == kind
    place[:] = x
    assert torch.equal(compiled(place)[0], x.float())
    if kind is torch.bfloat16:
        with pytest.raises(InputError, match="f16"):
            compiled(x.to(torch.float16))
        with pytest.raises(InputError, match="no input 'y'; expected x"):
            compiled.new_input("y")


def test_device_tensors_are_not_copied_and_others_once(shared_core: Core) -> None:
    compiled = npu.compile(Wide(64), torch.rand(8, 64), core=shared_core)
    x = torch.rand(8, 64)
    expected = compiled(x)
    assert compiled.compiled_model.staged_bytes == x.nbytes
    place = compiled.new_input("x")
    assert (type(place), place.dtype, place.shape) == (torch.Tensor, torch.float32, (8, 64))
    place[:] = x
    for _ in range(3):
        assert torch.equal(compiled(place), expected)
    assert compiled.compiled_model.staged_bytes == x.nbytes


def test_any_tensor_of_the_right_kind_is_accepted(shared_core: Core) -> None:
    compiled = npu.compile(Wide(4), torch.rand(4, 4), core=shared_core)
    x = torch.arange(16.0).reshape(4, 4)
    for value in (
        x.t(),
        x.clone().requires_grad_(),
        torch.nn.Parameter(x),
        x[0].expand(4, 4),
        x.to_sparse(),
        np.ascontiguousarray(x.numpy()[:, ::-1])[:, ::-1],
        np.frombuffer(x.numpy().tobytes(), np.float32).reshape(4, 4),
    ):
        dense = torch.as_tensor(
            np.array(value) if isinstance(value, np.ndarray) else value.detach().to_dense()
        )
        assert torch.equal(torch.as_tensor(compiled(value)), compiled(dense.contiguous().clone()))


def test_many_threads_call_at_once(shared_core: Core) -> None:
    module = Convolutions()
    compiled = npu.compile(module, torch.rand(1, 3, 8, 8), core=shared_core)
    images = [torch.rand(1, 3, 8, 8) for _ in range(6)]
    expected = [compiled(image) for image in images]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not torch.equal(compiled(images[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)
