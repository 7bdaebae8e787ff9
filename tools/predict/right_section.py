"""Will it be right? The model in f16 against itself in f32, and the layers to keep in f32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import openvino as ov
import psutil
from msgspec.structs import replace

from softnpu.emulator.arithmetic import common_passes, dialect, groups, library
from softnpu.emulator.arithmetic import operation_types as types
from softnpu.emulator.arithmetic.settings import HIGHER_PRECISION, MODE_PARAMS, Arithmetic
from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.tools.compare import feeds
from softnpu.tools.compare.graph import names_in, with_unique_names
from softnpu.tools.compare.references import port_names
from softnpu.tools.compare.statistics import F16_LARGEST
from softnpu.tools.predict.right import samples
from softnpu.tools.predict.right.causes import MEAN, PEAK
from softnpu.tools.predict.right.judging import Judge
from softnpu.tools.predict.right.result import (
    Error,
    LayerTrouble,
    Repair,
    Right,
    Rightness,
    Trouble,
)
from softnpu.tools.predict.section import Hint, Subject
from softnpu.tools.shared.console import format_bytes, format_count, print_line
from softnpu.tools.shared.failures import ToolError, UsageError

_RUNS_HELD: Final = 3
"""The model in f32, in f16, and OpenVINO's kernel form of one of them."""
_ROWS: Final = 8
_ELSEWHERE: Final = "compute it with smaller values, or leave it to another device (HETERO:NPU,CPU)"


class RightSection:
    """Outputs and layers in f16 against f32, and the list of layers that makes them right."""

    key = "right"
    title = "Will it be right?"
    same_for_all = True

    def answer(self, subject: Subject, platform: str) -> Right:
        """Return the comparison of both models: the same for all platforms, so it is computed once."""
        del platform
        if self.key not in subject.shared:
            subject.shared[self.key] = _answer(subject)
        answer: Right = subject.shared[self.key]
        return answer

    def hints(self, answers: Mapping[str, Right]) -> Sequence[Hint]:
        """Suggest the list of f32 layers."""
        answer = next(iter(answers.values()))
        if not answer.causes:
            return []
        first = answer.causes[0]
        if answer.repair is None:
            because = f"{_whole_name(first)} {first.trouble} in f16, and no list of layers in f32 was found"
            return [Hint(_ELSEWHERE, because, tuple(answers), 2)]
        left = _worst(answer.repair)
        text = f"set {MODE_PARAMS} to {answer.repair.setting}"
        reason = f"{_whole_name(first)} {first.trouble} in f16; run with it, outputs are at most {left} off"
        return [Hint(text, reason, tuple(answers), 2)]

    def show(self, answers: Mapping[str, Right], *, details: bool) -> None:
        """Show the verdict, the layers causing it, and the list with its proof; with `details` all layers."""
        answer = next(iter(answers.values()))
        if answer.verdict is Rightness.UNKNOWN:
            print_line(f"  not known: {answer.obstacle}")
            return
        _show_verdict(answer)
        if answer.causes:
            for each in answer.causes if details else answer.causes[:_ROWS]:
                _show_layer(each)
            if len(answer.causes) > _ROWS and not details:
                print_line("")
                print_line(f"  and {len(answer.causes) - _ROWS} more (--details)")
            print_line("")
        if answer.inherits:
            names = ", ".join(_whole_name(each) for each in answer.inherits[: None if details else 3])
            more = ", ..." if len(answer.inherits) > 3 and not details else ""
            verb = "inherits" if len(answer.inherits) == 1 else "inherit"
            print_line(f"  {format_count(len(answer.inherits), 'layer')} {verb} it: {names}{more}")
        if answer.without_effect:
            names = ", ".join(_with_largest(each) for each in answer.without_effect[: None if details else 3])
            more = ", ..." if len(answer.without_effect) > 3 and not details else ""
            count = format_count(len(answer.without_effect), "layer")
            verb = "overflows" if len(answer.without_effect) == 1 else "overflow"
            print_line(f"  {count} {verb} without effect on these outputs: {names}{more}")
        if answer.verdict is Rightness.WRONG:
            _show_repair(answer)
        for note in answer.notes:
            print_line(f"  note: {note}")


def _answer(subject: Subject) -> Right:
    """Return the findings; unknown if inputs are neither given nor can be generated."""
    try:
        return _judge(subject)
    except UsageError:
        raise
    except ToolError as error:
        if subject.samples.files or subject.samples.arrays:
            raise
        return _unknown(str(error))


def _judge(subject: Subject) -> Right:
    ports = samples.ports_of(subject.model)
    read = feeds.read(subject.samples.files, ports)
    given = feeds.Given(read.files, {**read.arrays, **subject.samples.arrays}, read.archive)
    outputs = [port_names(port) for port in subject.model.outputs]
    feeds.check_names(given, ports, outputs, names_in(subject.model))
    samples.check_used(subject.samples.files, given, ports)
    model = samples.reshaped(subject.model, given)
    for port in model.inputs:
        if port.partial_shape.is_dynamic:
            has = f"input '{port.any_name}' has the open shape {port.partial_shape}"
            return _unknown(f"{has}; give it with --shape, or values with --inputs")
    samples.fix_seeds(model)
    made = samples.make(model, given, subject.samples.count, subject.samples.seed)
    needed, free = _RUNS_HELD * _bytes_of_weights(model), psutil.virtual_memory().available
    if needed > free:
        return _unknown(f"its weights need {format_bytes(needed)} of memory in f32, of {format_bytes(free)}")
    try:
        library.ensure(lambda: None)
    except Refused as refusal:
        return _unknown(str(refusal.info))
    arithmetic, known = Arithmetic.of(subject.config), names_in(model)
    try:
        common_passes.run(model, arithmetic.kept)
        with_unique_names(model)
        _check_list(model, arithmetic)
        bounded = subject.samples.count is None and not given.arrays
        answer = Judge(model, made, arithmetic, bounded=bounded, known=known).judge()
    except RuntimeError as error:  # it cannot be rewritten, compiled or executed
        return _unknown(f"it does not run in f16 here: {openvino_errors.reason(error)}")
    return _with_other_params(answer, subject.config.get(MODE_PARAMS, ""))


def _check_list(model: ov.Model, arithmetic: Arithmetic) -> None:
    """Raise `UsageError` for a list of layers that names nothing of the model."""
    bodies = (model, *all_bodies(model))
    if arithmetic.kept and not any(groups.kept_in_f32(each, arithmetic.kept) for each in bodies):
        kinds = {node.get_type_name() for each in bodies for node in each.get_ops()}
        raise UsageError(
            f"--config {MODE_PARAMS}, {HIGHER_PRECISION}",
            found=f"{','.join(sorted(arithmetic.kept))}: no layer of the model",
            expected=f"types that it has: {', '.join(dialect.words(sorted(kinds & types.TYPES)))}",
        )


def _bytes_of_weights(model: ov.Model) -> int:
    """Return the bytes of all constants in f32."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    return sum(4 * math.prod(node.get_output_shape(0)) for node in constants)


def _with_other_params(answer: Right, params: str) -> Right:
    """Return the answer, with the already set parameters added to its setting."""
    others = [part for part in params.split() if not part.startswith(f"{HIGHER_PRECISION}=")]
    if answer.repair is None or not others:
        return answer
    setting = " ".join([*others, answer.repair.setting])
    return replace(answer, repair=replace(answer.repair, setting=setting))


def _unknown(obstacle: str) -> Right:
    return Right(verdict=Rightness.UNKNOWN, obstacle=obstacle)


# ---------------------------------------------------------------- text


def _show_verdict(answer: Right) -> None:
    worst = max(answer.outputs, key=lambda each: (not each.right, each.error.worst), default=None)
    if worst is None:
        print_line(f"  {answer.verdict}: it has no outputs")
        return
    by = f"{worst.error} in output '{worst.name}'"
    if answer.verdict is Rightness.WRONG:
        wrong = sum(not each.right for each in answer.outputs)
        print_line(f"  wrong: {wrong} of {format_count(len(answer.outputs), 'output')}, off by {by}")
    else:
        print_line(f"  right: outputs are off by at most {by}")
    print_line(f"  tolerated: {MEAN:.0%} in the mean, {PEAK:.0%} of the largest value")
    looked = f"{format_count(answer.points, 'rounding')} looked at"
    print_line(f"  {format_count(answer.samples, 'sample')} ({answer.inputs}), {looked}, {answer.runs} runs")
    if answer.nan:
        print_line(f"  {format_count(answer.nan, 'element')} of the outputs NaN in f32 already: not compared")
    if answer.largest is not None:
        place = f"{answer.largest.layer} at {_index(answer.largest.index)}"
        print_line(f"  largest value {answer.largest.value:.6g}, of {F16_LARGEST:.0f} that f16 has: {place}")


def _show_layer(each: LayerTrouble) -> None:
    print_line("")
    print_line(f"  {each.trouble}: {_whole_name(each)} ({each.type})")
    place = "in its body" if each.inside else f"at {_index(each.index)}"
    facts = [f"largest value in f32 {each.largest:.6g} {place}"]
    if each.beyond:
        of = f" of {each.elements}" if each.elements else ""
        facts.append(f"{each.beyond}{of} beyond f16")
    if each.error is not None:
        facts.append(f"off by {each.error}")
    print_line(f"    {', '.join(facts)}")
    if each.trouble is Trouble.CANCELS and each.own is not None:
        sources = ", ".join(each.reads)
        print_line(f"    by itself off by {each.own}: what it makes of the rounding of {sources}")
    if each.found:
        print_line(f"    seen when the others were repaired ({each.found})")


def _show_repair(answer: Right) -> None:
    if answer.repair is None:
        print_line(f"  no list of layers in f32 was found that makes it right ({answer.runs} runs)")
        return
    repair: Repair = answer.repair
    kept = f"{repair.kept} of {format_count(repair.operations, 'operation')} in f32"
    search = "" if repair.smallest else "; the search was ended, a smaller list may exist"
    print_line(f"  right with {MODE_PARAMS}={repair.setting}")
    print_line(f"    {kept}; run with it: at most {_worst(repair)} from f32{search}")


def _worst(repair: Repair) -> Error:
    return max((each.error for each in repair.outputs), key=lambda error: error.worst)


def _whole_name(each: LayerTrouble) -> str:
    return f"{each.layer}, step {each.step}" if each.step else each.layer


def _with_largest(each: LayerTrouble) -> str:
    return f"{_whole_name(each)} ({each.largest:.6g})"


def _index(index: Sequence[int]) -> str:
    return f"[{','.join(map(str, index))}]"
