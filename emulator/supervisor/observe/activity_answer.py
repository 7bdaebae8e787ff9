"""The answer to `Activity`: sessions, models and compilations, in parts that fit into a frame."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from softnpu.emulator.common.model_texts import listed
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.activity_messages import CompilationKind
from softnpu.emulator.links.compiler import CompileJob, ExportJob, ImportJob, Job, OptionsJob, QueryJob
from softnpu.emulator.supervisor.compilers.pool import Compilation
from softnpu.emulator.supervisor.engines.device import Device
from softnpu.emulator.supervisor.engines.virtual_function import VirtualFunction
from softnpu.emulator.supervisor.requests.session import Session
from softnpu.emulator.supervisor.state.objects import Graph

_LISTED = 48
_LISTED_COMPILATIONS = 24
_NAME = 96  # bytes
_STAGE = 16
_KINDS: dict[type[Job], CompilationKind] = {
    CompileJob: CompilationKind.COMPILE,
    ImportJob: CompilationKind.IMPORT,
    ExportJob: CompilationKind.EXPORT,
    QueryJob: CompilationKind.QUERY,
    OptionsJob: CompilationKind.OPTIONS,
}


def build(
    request: msg.Activity,
    sessions: Sequence[Session],
    devices: Sequence[Device],
    compilations: Iterable[Compilation],
) -> msg.ActivityAnswer:
    """The part of the answer behind the numbers of the request; only of these sessions and their models."""
    later = [session for session in sessions if session.number > request.after_session]
    models = [entry for entry in _models(sessions) if entry.model > request.after_model]
    models.sort(key=lambda entry: entry.model)
    seen = {session.number for session in sessions}
    jobs = [each for each in compilations if each.owner[1] in seen]
    first = not request.after_session and not request.after_model
    return msg.ActivityAnswer(
        time_ns=time.monotonic_ns(),
        sessions=tuple(session.activity() for session in later[:_LISTED]),
        models=tuple(models[:_LISTED]),
        more=len(later) > _LISTED or len(models) > _LISTED,
        compilation_count=len(jobs),
        compilations=tuple(map(_compilation, jobs[:_LISTED_COMPILATIONS])),
        histograms=tuple(each for device in devices for each in device.histograms()) if first else (),
    )


def _models(sessions: Sequence[Session]) -> list[msg.ModelActivity]:
    images: dict[int, tuple[VirtualFunction, Graph]] = {}
    graphs: dict[int, int] = defaultdict(int)
    users: dict[int, set[int]] = defaultdict(set)
    for session in sessions:
        for graph in session.state.graphs:
            number = graph.image.number
            images[number] = (session.state.function_of(graph.context), graph)
            graphs[number] += 1
            users[number].add(session.number)
    return [
        _model(function, graph, len(users[number]), graphs[number])
        for number, (function, graph) in images.items()
    ]


def _model(function: VirtualFunction, graph: Graph, sessions: int, graphs: int) -> msg.ModelActivity:
    image = graph.image
    inferences, busy_ns = function.states.image_usage(image.record)
    return msg.ModelActivity(
        model=image.number,
        device=graph.context.device,
        name=listed(image.answer.name, _NAME),
        state=image.state.value,
        memory=image.size,
        sessions=sessions,
        graphs=graphs,
        inferences=inferences,
        busy_ns=busy_ns,
        age_s=time.monotonic() - image.made,
    )


def _compilation(compilation: Compilation) -> msg.CompilationActivity:
    job, worker = compilation.job, compilation.worker
    return msg.CompilationActivity(
        session=compilation.owner[1],
        device=compilation.device,
        kind=_KINDS[type(job)].value,
        name=listed(job.name, _NAME) if isinstance(job, CompileJob | QueryJob) else "",
        stage=listed(compilation.progress.stage, _STAGE),
        done=min(max(compilation.progress.done, 0.0), 1.0),
        age_s=time.monotonic() - compilation.asked,
        worker=0 if worker is None else worker.pid,
    )
