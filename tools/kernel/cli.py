"""`softnpu kernel`: the commands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softnpu.tools.shared.console import (
    JsonOption,
    format_bytes,
    format_count,
    format_time,
    make_table,
    out,
    print_json,
    print_line,
)
from softnpu.tools.shared.groups import application
from softnpu.tools.shared.model_options import SeedOption

if TYPE_CHECKING:
    from softnpu.emulator.kernels.client import LoadedKernel
    from softnpu.emulator.kernels.description import Description

app = application("kernel", "Own kernels, in WebAssembly: begin, build, inspect, test, measure.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.wasm", help="A kernel's module.")]
AgainstOption = Annotated[
    str, typer.Option("--against", metavar="FILE.py:FUNCTION", help="Computes the same with numpy.")
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=D,D,...",
        help="Shape of an input; ? for a random extent, a name for one that others share. Repeatable. "
        "Without: random, the same for all.",
    ),
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="Value of an attribute. Repeatable."),
]


@app.command()
def new(file: Annotated[Path, typer.Argument(metavar="FILE.c", help="What to write.")]) -> None:
    """Begin a kernel: write the template, and the headers beside it."""
    from softnpu.tools.kernel.build import begin

    for path in begin(file):
        print_line(f"wrote {path}")
    print_line(f"build it with: softnpu kernel build {file}")


@app.command()
def build(
    file: Annotated[Path, typer.Argument(metavar="FILE.c", help="A source in C, C++ or Zig.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="What to write [FILE.wasm beside the source]."),
    ] = None,
) -> None:
    """Build a kernel with zig (PyPI's ziglang), and check that it is one."""
    from softnpu.emulator.kernels import code
    from softnpu.emulator.kernels.process import KernelProcess
    from softnpu.tools.kernel.build import build as run_build

    target = file.with_suffix(".wasm") if output is None else output
    started = time.perf_counter()
    run_build(file, target)
    content = target.read_bytes()
    with KernelProcess() as client:
        kernel = client.load(content)
    if not kernel.is_from_cache:
        code.keep(content)
    taken = format_time(time.perf_counter() - started)
    print_line(f"wrote {target}, {format_bytes(len(content))}, in {taken}: {_summary(kernel.description)}")


@app.command()
def inspect(file: FileArgument, json_output: JsonOption = False) -> None:
    """Tell what a kernel computes, and its digest. It is not run; needs neither wasmtime nor a device."""
    from softnpu.emulator.kernels import description, trust

    content = file.read_bytes()
    described = description.read(content)
    digest = trust.digest(content)
    if json_output:
        print_json({"size": len(content), "digest": digest, "description": described})
        return
    print_line(f"{file}: {format_bytes(len(content))}, {described.full_name}, version {described.version}")
    print_line(f"  sha256 {digest}")
    for kind, names in (("inputs", described.inputs), ("outputs", described.outputs)):
        print_line(f"{kind}")
        for name in names:
            print_line(f"  {name}{', dynamic' if name in described.dynamic else ''}")
    print_line("implementations")
    for each in described.implementations:
        print_line(f"  {each.run}: {', '.join(each.inputs)} -> {', '.join(each.outputs)}")
    if described.attributes:
        print_line("attributes")
        for attribute in described.attributes:
            default = "required" if attribute.default is None else f"default {attribute.default!r}"
            print_line(f"  {attribute.name}: {attribute.kind}, {default}")


@app.command("trust")
def trust_kernel(file: FileArgument) -> None:
    """Let daemons of this user that run with --kernels signed run a kernel; list its digest."""
    from softnpu.emulator.kernels import trust

    content = file.read_bytes()
    path, is_new = trust.add(content)
    print_line(f"{file}, sha256 {trust.digest(content)}, {'added to' if is_new else 'was in'} {path}")


@app.command("test")
def run_test(
    file: FileArgument,
    against: AgainstOption,
    shape: ShapeOption = None,
    attribute: AttributeOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each implementation.")] = 50,
    rtol: Annotated[float | None, typer.Option(min=0, help="Relative tolerance [of the type].")] = None,
    atol: Annotated[float | None, typer.Option(min=0, help="Absolute tolerance [of the type].")] = None,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Compare a kernel with a numpy function, randomly, in all types. Exit code 1 if it differs."""
    from softnpu.emulator.kernels.process import KernelProcess
    from softnpu.tools.kernel import testing

    reference, extents = testing.load_reference(against), testing.parse_extents(shape or [])
    with KernelProcess() as client:
        kernel = client.load(file.read_bytes())
        results = list(
            testing.check(
                kernel,
                reference,
                extents,
                testing.parse_attributes(kernel.description, attribute or []),
                rounds=rounds,
                seed=seed,
                tolerance=testing.Tolerance(rtol, atol),
            )
        )
    if json_output:
        print_json({"kernel": kernel.description.full_name, "results": results})
    else:
        table = make_table(None, "implementation", "types", right=("runs", "largest difference"))
        for each in results:
            difference = f"{each.largest_difference:.3g}"
            table.add_row(each.implementation, ", ".join(each.types), str(each.runs), difference)
        out.print(table)
        for each in results:
            print_line(f"{each.implementation}: {each.wrong or 'right'}")
    if any(each.wrong for each in results):
        raise typer.Exit(1)


@app.command()
def bench(
    file: FileArgument,
    shape: ShapeOption = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="FILE.py:FUNCTION", help="A peer that uses numpy.")
    ] = None,
    attribute: AttributeOption = None,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads of a kernel that can be split, against one; 0: every core.")
    ] = 0,
    rounds: Annotated[int, typer.Option(min=3, help="Runs on each side.")] = 100,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Measure a kernel in all its types, against a numpy function in the same run."""
    from softnpu.emulator.kernels.process import KernelProcess
    from softnpu.tools.bench import kernels, report
    from softnpu.tools.bench.conditions import conditions
    from softnpu.tools.kernel import testing

    reference = None if against is None else testing.load_reference(against)
    extents = testing.parse_extents(shape or [])
    content = file.read_bytes()
    with KernelProcess(threads=threads) as client, KernelProcess(threads=1) as alone:
        kernel, single = client.load(content), alone.load(content)
        attributes = testing.parse_attributes(kernel.description, attribute or [])
        fixed = _fixed(kernel, extents)
        figures = kernels.measure(kernel, single, fixed, attributes, reference, rounds=rounds, seed=seed)
        with conditions() as here:
            report.show(figures, json_output, here, only_judged=False)


def _fixed(kernel: LoadedKernel, extents: Any) -> list[tuple[int, ...]]:
    """Return the shapes of all inputs; refuse what leaves one open."""
    from softnpu.tools.shared.failures import UsageError

    for name in kernel.description.inputs:
        if not all(isinstance(each, int) for each in extents.get(name, (None,))):
            raise UsageError("--shape", found=f"no shape of {name}", expected=f"{name}=D,D,... of numbers")
    return [extents[name] for name in kernel.description.inputs]


def _summary(described: Description) -> str:
    types = "; ".join(
        f"{', '.join(each.inputs)} -> {', '.join(each.outputs)}" for each in described.implementations
    )
    attributes = format_count(len(described.attributes), "attribute")
    return f"{described.full_name}, {types}, {attributes}"
