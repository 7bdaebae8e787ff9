"""What the library's own tests try of modules, models, with the same sizes and bounds."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import intel_npu_acceleration_library as npu
import numpy as np
import torch
from intel_npu_acceleration_library.backend import Linear, MatMul, NNFactory, QLinear, QMatMul
from intel_npu_acceleration_library.backend import bindings as _bindings
from intel_npu_acceleration_library.backend.sdpa import SDPA
from intel_npu_acceleration_library.compiler import CompilerConfig
from intel_npu_acceleration_library.functional import scaled_dot_product_attention as attention
from intel_npu_acceleration_library.nn.module import Module, convert_to_npu_module
from intel_npu_acceleration_library.optimizations import horizontal_fusion_linear
from intel_npu_acceleration_library.quantization import quantize_tensor
from torch.nn import functional

from tests.native.acceleration_library import close, group
from tests.native.acceleration_operations import HALF, LAYER, centred


@group(
    lambda kernel, dtype, **_: dtype != "int8" or kernel == 1,
    inner=(128, 256, 512),
    outer=(128, 256, 512),
    kernel=(1, 3),
    size=(16, 128),
    bias=(True, False),
    dtype=("float16", "int8"),
)
def convolution_module(inner: int, outer: int, kernel: int, size: int, bias: bool, dtype: str) -> None:
    with torch.no_grad():
        x = 128 * torch.rand(1, inner, size, size)
        model = torch.nn.Sequential(torch.nn.Conv2d(inner, outer, kernel, bias=bias))
        reference = model(x)
        found = npu.compile(model, CompilerConfig(dtype=_dtype(dtype)))(x)
    assert found.dtype == reference.dtype
    close(reference, found, 0.05 if dtype == "int8" else 0.001)


def _dtype(name: str) -> Any:
    return {"int8": npu.int8, "int4": npu.int4}.get(name) or getattr(torch, name)


SIZES = {"heads": (16, 32), "sequence": (16, 32, 128, 256), "dim": (512, 1024), "cached": (True, False)}


def _attended(heads: int, sequence: int, dim: int, cached: bool) -> list[Any]:
    width, queries = dim // heads, 1 if cached else sequence
    shapes = ((1, heads, queries, width), (1, heads, sequence, width), (1, heads, sequence, width))
    mask = torch.triu(torch.full((1, heads, queries, sequence), torch.finfo(HALF).min, dtype=HALF))
    return [*(torch.rand(shape).to(HALF) for shape in shapes), mask]


@group(**SIZES, causal=(False, True))
def sdpa(heads: int, sequence: int, dim: int, cached: bool, causal: bool) -> None:
    *values, mask = _attended(heads, sequence, dim, cached)
    reference = functional.scaled_dot_product_attention(*values, None if causal else mask, is_causal=causal)
    model = SDPA(*(each.shape for each in values), mask.shape, is_causal=causal)
    close(reference, model.run(*(each.numpy() for each in (*values, mask))), 0.05)


@group(**SIZES, causal=(False, True))
def sdpa_runtime(heads: int, sequence: int, dim: int, cached: bool, causal: bool) -> None:
    *values, mask = _attended(heads, sequence, dim, cached)
    reference = functional.scaled_dot_product_attention(*values, None if causal else mask, is_causal=causal)
    close(reference, attention(*values, mask, is_causal=causal), 0.05)


@group(**LAYER, scales=("float32", "float16"))
def quantized_factory(batch: int, inner: int, outer: int, scales: str) -> None:
    rng = np.random.default_rng(1)
    model = NNFactory()
    source = model.parameter((batch, inner))
    model.linear(source, outer, inner, False, wt_dtype=np.int8 if scales == "float16" else np.float16)
    model.compile()
    x = rng.random((batch, inner)).astype(np.float16)
    w = rng.integers(-127, 127, (outer, inner)).astype(np.int8)
    s = (rng.random((outer, 1)) / np.sqrt(inner)).astype(scales)
    adapted = (s * np.sqrt(inner)).astype(scales) if scales == "float16" else s
    close(x.astype(np.float32) @ (w * s.astype(np.float32)).T, model.run(x, (w, adapted), op_id="0000"), 0.01)


@group(**LAYER)
def compiled_quantized(batch: int, inner: int, outer: int) -> None:
    x = centred(batch, inner)
    model = torch.nn.Sequential(torch.nn.Linear(inner, outer, bias=False))
    reference = model(x.float()).detach()
    close(reference, npu.compile(model, CompilerConfig(dtype=npu.int8))(x).detach(), 0.01)


def _two_layers() -> Any:
    layer = torch.nn.Linear
    return torch.nn.Sequential(
        layer(32, 128, bias=False), torch.nn.ReLU(), layer(128, 32, bias=False), torch.nn.ReLU()
    )


@group(dtype=("float16", "int8", "int4"))
def compilation(dtype: str) -> None:
    model, x = _two_layers().half(), 128 * centred(16, 32)
    reference = model(x).detach()
    compiled = npu.compile(model, CompilerConfig(dtype=_dtype(dtype)))
    expected = npu.nn.Linear if dtype == "float16" else npu.nn.QuantizedLinear
    assert isinstance(compiled[0], expected), type(compiled[0])
    first, second = compiled(x).detach(), compiled(x).detach()
    close(reference, first, 0.05 if dtype == "int4" else 0.01)
    assert torch.allclose(first, second)


@group()
def torch_compile() -> None:
    model, x = _two_layers(), 128 * centred(16, 32)
    close(model(x.float()).detach(), torch.compile(model, backend="npu")(x).detach(), 0.01)


@group(
    lambda dtype, training: dtype != "int4" or not training,
    dtype=("float32", "float16", "int8", "int4"),
    training=(True, False),
)
def compile_training(dtype: str, training: bool) -> None:
    model = npu.compile(_two_layers(), CompilerConfig(dtype=_dtype(dtype), training=training))
    assert model[0].training == (training and dtype != "int8")


@group()
def gradient() -> None:
    def perceptron() -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128)
        ).half()

    ours, theirs = perceptron(), perceptron()
    theirs.load_state_dict(ours.state_dict())
    npu.compile(ours, CompilerConfig(training=True))
    assert len(list(ours.parameters())) == 4
    x, wanted = torch.rand(256, 128).half(), torch.rand(256, 128).half()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (ours, theirs)]
    for _ in range(100):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            close(other.detach(), one.detach(), 0.001)
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            torch.mean((wanted - model(x)) ** 2).backward()
            optimizer.step()


@group(
    shape=([1, 128, 13, 13], [12, 231]),
    dtype=("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    source=("numpy", "library"),
)
def tensor_creation(shape: list[int], dtype: str, source: str) -> None:
    kind = getattr(np if source == "numpy" else npu.dtypes, dtype)
    tensor = NNFactory().parameter(shape, kind)
    assert (tensor.shape, tensor.dtype) == (shape, kind)


@group()
def tensor_operations() -> None:
    model = NNFactory()
    first, second = model.parameter([1, 128, 32, 64], npu.float16), model.parameter([128 * 32 * 64], npu.int8)
    second = second.to(npu.float16).reshape(128, 64, 32).unsqueeze(0).T
    out = (first + second).transpose(1, 2).reshape([32, 128, 64])
    assert out.shape == [32, 128, 64]
    model.compile()
    sliced = NNFactory()  # a tensor does not keep its factory alive
    tensor = sliced.parameter([1, 128, 32, 64], npu.float16)
    assert tensor[:, 0:64, :, :].shape == [1, 64, 32, 64]
    assert tensor[0, 0:64:2, :, :].shape == [1, 32, 32, 64]
    assert tensor[..., :-2, :].shape == [1, 128, 30, 64]
    assert tensor[:, 10:20, ...].shape == [1, 10, 32, 64]


class _Inner(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.rand(128, 128).to(HALF))
        self.l1 = torch.nn.Linear(256, 128).half()

    def forward(self, x: Any, y: Any, sum: bool = False) -> Any:
        return self.l1(y + x if sum else x - y) * self.w


class _Outer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.l1 = _Inner()
        self.register_buffer("xx", torch.rand(128, 128).to(HALF))

    def forward(self, x: Any, y: Any, sum: bool = False) -> Any:
        return (x * y)[:, :128] + self.l1(x, y, sum=sum) * self.xx


@group(sum=(True, False))
def nested_module(sum: bool) -> None:
    model = convert_to_npu_module(_Outer())
    assert isinstance(model, Module)
    x, y = torch.rand(128, 256).to(HALF), torch.rand(128, 256).to(HALF)
    reference = model(x, y=y, sum=sum)
    model.to("NPU")
    close(reference.detach(), model(x, y=y, sum=sum).detach(), 0.001)


@group(channels=(16, 128, 256), size=(16, 32, 64))
def batch_norm_module(channels: int, size: int) -> None:
    model = convert_to_npu_module(torch.nn.BatchNorm2d(channels).half().eval())
    x = torch.rand(1, channels, size, size).to(HALF)
    reference = model(x)
    model.to("NPU")
    close(reference.detach(), model(x).detach(), 0.001)


@group()
def device() -> None:
    x = torch.rand(128, 128).to(HALF).to("npu")
    model = torch.nn.Sequential(torch.nn.Linear(128, 128)).half().to("npu")
    assert isinstance(model, Module)
    assert model(x).dtype == HALF


@group(device=("CPU", "NPU"))
def bindings(device: str) -> None:
    factory = _bindings.lib.createNNFactory(ctypes.c_char_p(device.encode()), False)
    _bindings.lib.destroyNNFactory(factory)


@group(inner=(16, 32, 64, 128), outer=(16, 32, 64, 128), batch=(16, 128), started=(True, False))
def factory_bindings(inner: int, outer: int, batch: int, started: bool) -> None:
    lib = _bindings.lib
    factory = lib.createNNFactory(ctypes.c_char_p(b"NPU"), False)
    shape, kind = np.array((batch, inner), np.uint32), ctypes.c_char_p(b"float16")
    layer = lib.linear(factory, lib.parameter(factory, 2, shape, kind), outer, inner, False, kind, kind)
    lib.result(factory, layer)
    lib.compile(factory)
    parameters, weights = lib.createParameters(), np.zeros((outer, inner), np.float16)
    lib.addFloatParameter(parameters, weights, outer, inner)  # the library reads them later, in a thread
    lib.setNNFactoryWeights(factory, parameters)
    x, out = np.ones((batch, inner), np.float16), np.ones((batch, outer), np.float16)
    if started:
        lib.set_activation(factory, x.ctypes.data_as(ctypes.c_void_p), 0)
        lib.set_output(factory, out.ctypes.data_as(ctypes.c_void_p), 0)
        lib.run(factory)
        assert not out.any()
    lib.destroyNNFactory(factory)
    lib.destroyParameters(parameters)


@group()
def saved_models() -> None:
    model = MatMul(2048, 512, 512)
    model.save("model.xml")
    model.saveCompiledModel("model.blob")
    for name in ("model.xml", "model.bin", "model.blob"):
        assert os.path.isfile(name)  # the weights of a model without constants are an empty file
        os.remove(name)


@group(**LAYER, dtype=("float16", "int8"), activation=("gelu", "swish", "softmax"))
def factory(batch: int, inner: int, outer: int, dtype: str, activation: str) -> None:
    model = NNFactory()
    source, weights = model.parameter((batch, inner)), model.parameter((outer, inner), getattr(np, dtype))
    product = model.matmul(source, model.convert_to_fp16(weights) if dtype == "int8" else weights)
    found = getattr(model, activation)(product)
    model.compile()
    assert list(found.shape) == [batch, outer]
    model.save("factory.xml")
    assert os.path.isfile("factory.xml")


@group()
def profiling() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.uniform(-1, 1, (512, 2048)).astype(np.float16) for _ in range(2))
    quantized, scale = quantize_tensor(torch.tensor(w))
    packed = (quantized.numpy(), (scale * np.sqrt(2048)).numpy())
    for kind, arguments, more in (
        (MatMul, (w,), {}),
        (QMatMul, packed, {}),
        (Linear, (w,), {"op_id": 0}),
        (QLinear, packed, {"op_id": 0}),
    ):
        kind(2048, 512, 512, profile=True).run(x, *arguments, **more)
        assert os.path.isfile("profiling.json"), f"{kind.__name__} wrote no profiling.json"
        os.remove("profiling.json")


@group(sequence=(16, 128, 256), hidden=(256, 512))
def phi2_mlp(sequence: int, hidden: int) -> None:
    from transformers.models.phi.modeling_phi import PhiConfig, PhiMLP

    model = PhiMLP(PhiConfig(num_hidden_layers=1, hidden_size=hidden, intermediate_size=512))
    x = torch.rand(sequence, hidden).to(HALF)
    with torch.no_grad():
        reference = model(x.float())
        close(reference, npu.nn.PhiMLP.fromTorch(model)(x), 0.001)


@group(sequence=(16, 128, 256), hidden=(256, 512), dtype=("float16", "int8", "int4"))
def phi3_mlp_compile(sequence: int, hidden: int, dtype: str) -> None:
    from transformers.models.phi3.modeling_phi3 import Phi3Config, Phi3MLP

    model = Phi3MLP(Phi3Config(num_hidden_layers=1, hidden_size=hidden, intermediate_size=512))
    x = torch.rand(sequence, hidden)
    with torch.no_grad():
        reference = model(x)
        compiled = npu.compile(model, CompilerConfig(use_to=True, dtype=_dtype(dtype)))
        close(reference, compiled(x).detach(), 0.05 if dtype == "int4" else 0.001)


@group(dtype=("float16", "int8"))
def llama_compilation(dtype: str) -> None:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1))
    tokens = torch.tensor([[1, 1243, 10541]])
    with torch.no_grad():
        reference = model(tokens).logits
        found = npu.compile(model, CompilerConfig(dtype=_dtype(dtype)))(tokens).logits
    close(reference.flatten(), found.flatten(), 0.01)


@group(hidden=(256, 512), intermediate=(512, 1024), sequence=(1, 128), bias=(True, False))
def gemma_model(hidden: int, intermediate: int, sequence: int, bias: bool) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaConfig, GemmaModel

    config = GemmaConfig(num_hidden_layers=1, hidden_size=hidden, intermediate_size=intermediate)
    config.head_dim = hidden // config.num_attention_heads
    del bias  # a parameter of the library's test that its Gemma does not use
    tokens = torch.randint(0, 1024, (1, sequence))
    with torch.no_grad():
        model = GemmaModel(config).eval()
        reference = model(tokens)[0]
        found = npu.compile(model, CompilerConfig(dtype=HALF))(tokens)[0]
    close(reference.flatten(), found.flatten(), 0.01)


@group(layers=(2, 3, 10))
def fusion_of_modules(layers: int) -> None:
    class Branches(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linears = torch.nn.ModuleList([torch.nn.Linear(512, 128) for _ in range(layers)])

        def forward(self, x: Any) -> Any:
            return torch.cat([layer(x) for layer in self.linears], dim=-1)

    model, x = Branches(), torch.rand(1, 512) - 0.5
    reference = model(x)
    assert torch.allclose(reference, horizontal_fusion_linear(model)(x), rtol=1e-3, atol=1e-4)
