"""torch modules for tests: small, with fixed weights, each with another form of arguments or results."""

# mypy: allow-subclassing-any
from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import nn


class Convolutions(nn.Module):
    """A picture in, ten numbers out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8 * 6 * 6, 10)
        self.norm.running_mean = torch.rand(8)
        self.norm.running_var = torch.rand(8) + 0.5

    def forward(self, image: Any) -> Any:
        return self.last(self.drop(self.norm(self.first(image)).relu().flatten(1)))


class Encoder(nn.Module):
    """Token ids and a mask in, one layer of a transformer, a dict out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: Any, mask: Any = None) -> Any:
        hidden = self.layer(self.embedding(ids), src_key_padding_mask=mask)
        return {"hidden": hidden, "pooled": hidden.mean(1)}


class Wide(nn.Module):
    """One matrix of `size` x `size` numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.matrix = nn.Linear(size, size)

    def forward(self, x: Any) -> Any:
        return self.matrix(x)


class Arguments(nn.Module):
    """Every kind of parameter."""

    def forward(
        self,
        x: Any,
        /,
        scale: float = 2.0,
        *more: Any,
        mask: Any = None,
        kind: Any = torch.float32,
        **named: Any,
    ) -> Any:
        total = (x * scale).to(kind)
        for other in (*more, *named.values()):
            total = total + other
        return total if mask is None else total * mask


class Boxes(NamedTuple):
    """A named tuple."""

    corners: Any
    scores: Any


@dataclasses.dataclass
class Detections:
    """A dataclass with containers in it."""

    boxes: Boxes
    features: list[Any]
    labels: dict[Any, Any]
    count: int
    note: str | None = None


class Detector(nn.Module):
    """Containers in containers."""

    def forward(self, batch: Any) -> Any:
        left, (right, factor) = batch["left"], batch["pair"]
        return Detections(
            boxes=Boxes(left + right, left.sum(1)),
            features=[left * factor, (right, None)],
            labels={"best": left.max(1), 3: right > 0},
            count=7,
        )


class Passing(nn.Module):
    """Returns its input twice among its outputs, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: Any, unused: Any) -> Any:  # noqa: ARG002
        return x, x + 1, x, self.table


class Kinds(nn.Module):
    """Returns every element type."""

    def forward(self, x: Any) -> Any:
        return [x.to(kind) for kind in KINDS]


KINDS = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64,
    torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


class Summed(nn.Module):
    """Concatenates and sums rows of two tensors; the number of rows is part of the result."""

    def forward(self, left: Any, right: Any) -> Any:
        joined = torch.cat([left, right], 1)
        return joined * 2, joined.shape[0]


def in_torch(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the module's own result in eval mode."""
    modes = module.training
    module.eval()
    try:
        with torch.no_grad():
            return module(*args, **kwargs)
    finally:
        module.train(modes)
