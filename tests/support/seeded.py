"""Defective engines: a PYTHONPATH folder that changes the engine of every daemon started with it."""

from __future__ import annotations

from pathlib import Path

_SITE = """
import importlib.machinery, os, sys, time

MODULE = "softnpu.emulator.engine.running.runner"
EVERY = 7  # inferences


def outputs(inference):
    arguments = inference._image.loaded.meta.arguments
    places = zip(inference._command.arguments, arguments)
    return [inference._space.target(at, it.byte_size, it.alignment) for at, it in places if not it.input]


def skipped(runner, queue, program, honest):
    return None


def early(runner, queue, program, honest):
    runner._submission.fence_record.signal(runner._submission.ticket, 0)
    time.sleep(0.1)
    return honest(runner, queue, program)


def half(runner, queue, program, honest):
    before = [output.copy() for output in outputs(program.inference)]
    honest(runner, queue, program)
    for output, old in zip(outputs(program.inference), before):
        output[len(output) // 2 :] = old[len(output) // 2 :]


def stale(runner, queue, program, honest):
    honest(runner, queue, program)
    for output, old in zip(outputs(program.inference), LAST[id(program)]):
        output[:] = old


LAST = {}
DEFECT = globals()[os.environ["SEEDED_DEFECT"]]


def seed(module):
    honest, count = module.Runner._run_steps, [0]

    def run(runner, queue, program):
        if program.inference is None or program.inference._image.loaded is None:
            return honest(runner, queue, program)
        count[0] += 1
        if count[0] % EVERY == 0 and id(program) in LAST:
            return DEFECT(runner, queue, program, honest)
        waits = honest(runner, queue, program)
        LAST[id(program)] = [output.copy() for output in outputs(program.inference)]
        return waits

    module.Runner._run_steps = run


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        honest = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (honest(module), seed(module))
        return spec


sys.meta_path.insert(0, Finder)
"""


def seeded_engine(folder: Path, defect: str) -> dict[str, str]:
    """Return an environment in which every 7th inference is wrong.

    `defect`: skipped (nothing runs, and success is reported), early (the fence is signalled 0.1 s before it
    runs), half (the second half of each output is not written), stale (the outputs are those of the
    previous inference).
    """
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(folder), "SEEDED_DEFECT": defect}
