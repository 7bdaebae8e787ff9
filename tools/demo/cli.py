"""`softnpu demo`: handwritten digits, classified on the emulated NPU by several processes at once."""

from __future__ import annotations

import signal
import statistics
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from softnpu.tools.shared.console import JsonOption, err, format_time, out, print_json, print_line
from softnpu.tools.shared.failures import ToolError

if TYPE_CHECKING:
    from softnpu.tools.demo.worker import Share

REQUIRED_ACCURACY: Final = 0.95
_DEADLINE_S: Final = 120.0
_SHOWN: Final = 4


def demo(
    processes: Annotated[int, typer.Option(min=1, max=16, help="Client processes that share the work.")] = 2,
    json_output: JsonOption = False,
) -> None:
    """Classify handwritten digits on the emulated NPU; compare every number with OpenVINO's CPU device."""
    import numpy as np

    from softnpu.tools.demo.digits import load_test_set

    images, labels = load_test_set()
    with err.status(f"{processes} processes classify {len(images)} images on the emulated NPU"):
        shares = _run_clients(images, processes)
    probabilities = np.concatenate([share.probabilities for share in shares])
    with err.status("the same on OpenVINO's CPU device"):
        reference = _reference(images, shares[0].config)
    accuracy = float(np.mean(probabilities.argmax(axis=1) == labels))
    equal = probabilities.tobytes() == reference.tobytes()
    gap = float(np.abs(probabilities - reference).max())
    if json_output:
        print_json(_as_document(shares, accuracy, equal, gap))
    else:
        _show_images(images, labels, probabilities)
        _show_run(shares, accuracy)
        if equal:
            verdict = f"[green]all {probabilities.size} numbers equal OpenVINO's CPU device, bit by bit[/]"
        else:
            verdict = f"[red]numbers differ from OpenVINO's CPU device, by up to {gap:.3g}[/]"
        out.print(verdict, highlight=False)
    if not equal or accuracy <= REQUIRED_ACCURACY:
        raise typer.Exit(1)


def _run_clients(images: Any, processes: int) -> list[Share]:
    """Give each of `processes` fresh processes part of the images; return their shares in order."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from contextlib import ExitStack

    import numpy as np

    from softnpu.tools.demo.digits import model_path
    from softnpu.tools.demo.worker import classify

    model = model_path()
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        # one pool each, or a fast process would take a slow one's work
        pools = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in range(processes)]
        parts = np.array_split(images, processes)
        # Ctrl-C is for this process, which ends them: they inherit SIG_IGN
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        futures = [pool.submit(classify, model, part) for pool, part in zip(pools, parts, strict=True)]
        signal.signal(signal.SIGINT, handler)
        try:
            return [future.result(_DEADLINE_S) for future in futures]
        except BrokenProcessPool as error:
            raise ToolError("client process", found="it ended early", expected="a result") from error
        except TimeoutError as error:
            _kill_clients()
            raise ToolError(
                "client processes", found=f"no result within {_DEADLINE_S:g} s", expected="a result"
            ) from error
        except KeyboardInterrupt:
            _kill_clients()
            raise


def _kill_clients() -> None:
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()


def _reference(images: Any, config: dict[str, str]) -> Any:
    """Return the probabilities of OpenVINO's own CPU device in this process, with the same properties."""
    import numpy as np
    import openvino as ov

    from softnpu.tools.demo.digits import model_path

    same = {name: value for name, value in config.items() if name != "INFERENCE_NUM_THREADS"}
    compiled = ov.Core().compile_model(model_path(), "CPU", same)
    return np.concatenate([compiled(image[None])[0] for image in images])


def _show_images(images: Any, labels: Any, probabilities: Any) -> None:
    """Show some images side by side above their classes, including a mistake if there is one."""
    from rich.table import Table

    from softnpu.tools.demo.digits import as_text

    classes = probabilities.argmax(axis=1)
    wrong = (classes != labels).nonzero()[0]
    chosen = [*range(_SHOWN - 1), int(wrong[0]) if len(wrong) else _SHOWN - 1]
    table = Table.grid(padding=(0, 3))
    table.add_row(*(as_text(images[index]) for index in chosen))
    table.add_row(*(_verdict(labels[index], classes[index], probabilities[index].max()) for index in chosen))
    out.print(table)
    out.print()


def _verdict(label: int, predicted: int, share: float) -> str:
    if label == predicted:
        return f"[green]{predicted}[/] ({share:.1%})"
    return f"[red]{predicted}[/] ({share:.1%}), is {label}"


def _show_run(shares: list[Share], accuracy: float) -> None:
    import numpy as np

    count = sum(len(share.times_s) for share in shares)
    times = np.concatenate([share.times_s for share in shares])
    median, p90 = format_time(float(np.median(times))), format_time(float(np.quantile(times, 0.9)))
    first = shares[0]
    clients = ", ".join(f"{share.pid} ({len(share.times_s)} images)" for share in shares)
    compiled = ", ".join(f"{share.compile_ms:.0f} ms" for share in shares)
    by_driver = sum(share.staged_by_driver for share in shares)
    by_engine = max(share.staged_by_engine for share in shares)  # each has seen the total caused by all
    lines = (
        f"device        NPU, platform {first.platform}: daemon {first.daemon_pid}, engine {first.engine_pid}",
        f"clients       {clients}",
        f"compile       {compiled}",
        f"inference     {median} median, {p90} in nine of ten",
        f"staged bytes  {by_driver} by the drivers, {by_engine} by the engine",
        f"accuracy      {accuracy:.1%} of {count} images that the network was not trained on",
    )
    for line in lines:
        print_line(line)


def _as_document(shares: list[Share], accuracy: float, equal: bool, gap: float) -> dict[str, Any]:
    times = [seconds for share in shares for seconds in share.times_s]
    return {
        "platform": shares[0].platform,
        "images": len(times),
        "accuracy": accuracy,
        "identical": equal,
        "largest_difference": gap,
        "median_s": statistics.median(times),
        "clients": [
            {"pid": share.pid, "images": len(share.times_s), "compile_s": share.compile_ms / 1e3}
            for share in shares
        ],
        "staged_by_driver": sum(share.staged_by_driver for share in shares),
        "staged_by_engine": max(share.staged_by_engine for share in shares),
    }
