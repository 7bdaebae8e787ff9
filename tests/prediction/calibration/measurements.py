"""The published figures: models on a device, and single workloads on one tile or one SHAVE."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.quantisation import quantised
from tests.prediction.calibration.architectures import architecture
from tests.prediction.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model's published throughput or latency; `us` is the resulting time of an inference.

    `host` is the processor, `program` what measured it: benchmark_app, or a script around OpenVINO.
    `pictures`: inputs were u8, not f32. `remark` explains a figure that no hardware model would expect;
    otherwise empty. `fitted`: whether calibration may use it.
    """

    id: str
    model: str
    platform: str
    host: str
    precision: str
    program: str
    pictures: bool
    latency: bool
    published: float
    unit: str
    remark: str
    fitted: bool

    @property
    def us(self) -> float:
        """Microseconds per inference."""
        return self.published * 1000 if self.latency else 1e6 / self.published

    def graph(self) -> Graph:
        """Return the model as it was measured: quantised or not, with its type of inputs."""
        graph = architecture(self.model)
        if self.pictures:
            graph = _with_pictures(graph)
        return quantised(graph) if self.precision == "int8" else graph


def _with_pictures(graph: Graph) -> Graph:
    first, *others = graph.operations
    tensor = replace(first.outputs[0], element_type="u8")
    return Graph(graph.name, (replace(first, outputs=(tensor,)), *others))


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """Cycles of one workload. Shapes are channels, height, width."""

    platform: str
    kernel: str
    precision: str
    before: tuple[int, int, int]
    after: tuple[int, int, int]
    window: tuple[int, int]
    stride: int
    cycles: int
    source: str

    @property
    def id(self) -> str:
        """The name for tables."""
        shape = "x".join(map(str, self.after))
        window = f" {self.window[0]}x{self.window[1]}/{self.stride}" if self.window != (1, 1) else ""
        return f"{self.kernel.replace('wiseConvolution', 'wise')} {shape}{window}"

    def graph(self) -> Graph:
        """Return the workload as a model of one operation, quantised or not."""
        return quantised(self._graph()) if self.precision == "int8" else self._graph()

    def _graph(self) -> Graph:
        build = GraphBuilder(self.id)
        source = build.parameter(1, *self.before)
        shape = (1, *self.after)
        if self.kernel in ("Convolution", "DepthwiseConvolution"):
            groups = self.before[0] if self.kernel.startswith("Depthwise") else 1
            weights = (
                build.constant(self.after[0], self.before[0], *self.window)
                if groups == 1
                else build.constant(groups, 1, 1, *self.window)
            )
            named = "Convolution" if groups == 1 else "GroupConvolution"
            return build.build(build.add(named, [source, weights], shape, strides=(self.stride, self.stride)))
        if self.kernel == "Eltwise":
            return build.build(build.elementwise("Add", source, build.parameter(*shape)))
        if self.kernel.endswith("Broadcast"):
            other = build.parameter(1, *(1, 1, self.after[2]))
            return build.build(build.elementwise(self.kernel.removesuffix("Broadcast"), source, other))
        if self.kernel in ("Multiply", "Divide", "Greater", "Less", "Equal", "Power"):
            return build.build(build.elementwise(self.kernel, source, build.parameter(*shape)))
        return build.build(build.add(self.kernel, [source], shape, axis=3, levels=65536))


def model_rows() -> tuple[ModelRow, ...]:
    """Return the rows of models, in file order."""
    return tuple(
        ModelRow(
            id=row["id"],
            model=row["model"],
            platform=row["platform"],
            host=row["host"],
            precision=row["precision"],
            program=row["program"],
            pictures=row["input"] == "u8",
            latency=row["mode"] == "latency",
            published=float(row["value"]),
            unit=row["unit"],
            remark=row["remark"],
            fitted=row["fitted"] == "yes",
        )
        for row in _read("models.csv")
    )


def workload_rows() -> tuple[WorkloadRow, ...]:
    """Return the rows of workloads, in file order."""
    return tuple(
        WorkloadRow(
            platform=row["platform"],
            kernel=row["kernel"],
            precision=row["precision"],
            before=(int(row["in_c"]), int(row["in_h"]), int(row["in_w"])),
            after=(int(row["out_c"]), int(row["out_h"]), int(row["out_w"])),
            window=(int(row["k_h"]), int(row["k_w"])),
            stride=int(row["stride"]),
            cycles=int(row["cycles"]),
            source=row["source"],
        )
        for row in _read("workloads.csv")
    )


def _read(name: str) -> Iterator[dict[str, str]]:
    text = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())
