"""Native blobs: import, which trusts nothing, and export with all weights inside."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator.blob import container, kernel_plan
from softnpu.emulator.blob.constant_digests import check_constants, digests_in
from softnpu.emulator.blob.container import (
    ArgumentMeta,
    BlobReader,
    GraphMeta,
    Section,
    StateMeta,
    WeightsReference,
)
from softnpu.emulator.blob.weight_space import WeightSpace, check_range
from softnpu.emulator.blob.weights import (
    MAX_SPACE,
    Placement,
    check_canonical,
    offsets_in_space,
    with_actual_offsets,
)
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import files, imported_kernels, options
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.interface.messages import GraphExported
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.links.compiler import Compiled, ExportJob, ImportJob

if TYPE_CHECKING:
    import openvino as ov

_CHUNK = 16 << 20
_CONSTANTS = (Section.WEIGHTS, Section.WEIGHTS_REFERENCE)
_PLACEMENT_LIMIT = 64 << 20
_LISTED_NAME = 256


def run_import(job: ImportJob, fds: list[int], stages: Stages, runtime: Runtime) -> JobResult:
    """Check a blob; refuse one that is incomplete, for another device, or with other weights.

    `fds`: the blob, which cannot change and has no padding, the placement if it has a length, the sources of
    the weights.
    """
    stages.begin("receive")
    length = job.blob_length
    fd = os.dup(fds[0])
    kept = [fd]
    try:
        reader = BlobReader(files.map_range(fd, 0, length, "blob"))
        meta = reader.metadata()
        subject = f"model '{meta.name}'"
        if not job.is_checked:
            _check_target(meta, job.platform, runtime, subject)
        if job.strict:
            _check_strict(meta, subject)
        imported_kernels.check_travels(reader, subject)
        reference = _checked_reference(reader, subject)
        placement = _placement(fds[1], job.placement_length) if job.placement_length else None
        space = _space(job, fds, reader, fd, reference, subject)
        actual = offsets_in_space(reference, placement, space.layout, space.embedded)
        stages.begin("weights")
        if reference is not None and reference.outside:
            placement = Placement(offsets=tuple(actual[constant.offset] for constant in reference.outside))
            if not job.deferred:
                check_constants(reference, placement.offsets, digests_in(space), subject, stages.advance)
        else:
            placement = None
        if not job.is_checked:
            _check_content(reader, meta, actual, space, runtime, stages)
        encoded = b"" if placement is None else placement.encode()
        if encoded:
            kept.append(linux.sealed_copy("placement", encoded))
        answer = Compiled(
            blob_length=length,
            placement_length=len(encoded),
            origin="native",
            platform=meta.platform,
            name=meta.name[:_LISTED_NAME],
        )
    except BaseException:
        for each in kept:
            os.close(each)
        raise
    return JobResult(answer, tuple(kept))


def run_export(job: ExportJob, fds: list[int], stages: Stages) -> JobResult:
    """Return a blob with all constants inside, each at its canonical offset.

    `fds` as for an import, then the file to write into if the job has an offset. Refuses weights that have
    changed since the model was compiled, by the first that differs.
    """
    stages.begin("receive")
    target = None
    if job.offset is not None:
        *fds, file = fds
        target = _target(file, job.offset)
    reader = BlobReader(files.map_range(fds[0], 0, job.blob_length, "blob"))
    reference = reader.weights_reference()
    placement = _placement(fds[1], job.placement_length) if job.placement_length else None
    space = _space(job, fds, reader, fds[0], reference, "model")
    actual = offsets_in_space(reference, placement, space.layout, space.embedded)
    stages.begin("weights")
    others = [Section(kind) for kind, _, _ in reader.sections if kind not in _CONSTANTS]
    content: dict[Section, tuple[int, Callable[[], Iterator[bytes | memoryview]]]] = {
        section: _as_is(reader, section) for section in others
    }
    if reference is not None and reference.constants:
        check_canonical(reference)
        outside = [actual[constant.offset] for constant in reference.outside]
        subject = f"model '{reader.metadata().name}'"
        check_constants(reference, outside, digests_in(space), subject, stages.advance)
        whole = _embedding_all(reference)
        content[Section.WEIGHTS] = (whole.size, lambda: _constants(whole, actual, space))
        encoded = msgspec.msgpack.encode(whole)
        content[Section.WEIGHTS_REFERENCE] = (len(encoded), lambda: iter([encoded]))
    content = container.in_order(content)
    if target is not None:
        return JobResult(GraphExported(blob_length=container.write(content, target)))
    if Section.WEIGHTS in content:
        files.check_fits(content[Section.WEIGHTS][0], "blob with all weights")
    result = linux.memfd("native")
    try:
        length = container.write(content, lambda piece: _write(result, piece))
        linux.seal(result, linux.SEALS_IMMUTABLE)
    except BaseException:
        os.close(result)
        raise
    return JobResult(GraphExported(blob_length=length), (result,))


def _target(fd: int, offset: int) -> Callable[[bytes | memoryview], None]:
    """Write pieces one after the other into a file of the client's, which stays where it is."""
    if not stat.S_ISREG(os.fstat(fd).st_mode) or not 0 <= offset <= MAX_SPACE:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "export, target",
            found=f"no regular file, or offset {offset}",
            expected=f"a file, and an offset from 0 to {MAX_SPACE}",
        )
    at = offset

    def put(piece: bytes | memoryview) -> None:
        nonlocal at
        view = memoryview(piece)
        while view:
            done = os.pwrite(fd, view, at)
            view, at = view[done:], at + done

    return put


def fd_count(job: ImportJob | ExportJob) -> int:
    """Return the number of descriptors of a job: blob, placement, sources of the weights, file to write."""
    target = isinstance(job, ExportJob) and job.offset is not None
    return 1 + (job.placement_length > 0) + len(job.weights) + target


def without_padding(fd: int, length: int) -> int:
    """Return the length of a blob without the zeros behind it."""
    check_range(fd, 0, length, "blob")
    size = container.unpadded_size(os.pread(fd, container.HEADER_SIZE, 0), length)
    return length if any(os.pread(fd, length - size, size)) else size


def _space(
    job: ImportJob | ExportJob,
    fds: list[int],
    reader: BlobReader,
    blob_fd: int,
    reference: WeightsReference | None,
    subject: str,
) -> WeightSpace:
    outside = reference.outside if reference is not None else ()
    if outside and not job.weights:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"{subject}, weights",
            found="none came with the blob",
            expected=f"{sum(constant.length for constant in outside)} bytes in {len(outside)} constants",
            hint="give the weights that the model was compiled with",
        )
    weights_range = reader.extent(Section.WEIGHTS)
    section = None if weights_range is None else (blob_fd, *weights_range)
    sources = fds[len(fds) - len(job.weights) :]
    return WeightSpace(job.weights, sources, subject, section)


def _checked_reference(reader: BlobReader, subject: str) -> WeightsReference | None:
    """Return the constants, after the checksum of the section that has those inside the blob."""
    reference = reader.weights_reference()
    if reader.has(Section.WEIGHTS):
        reader.read(Section.WEIGHTS)
        if reference is None:
            raise _invalid(
                f"{subject}, weights", found="constants that nothing refers to", expected="WEIGHTS_REFERENCE"
            )
    if reference is not None:
        check_canonical(reference)
    return reference


def _placement(fd: int, length: int) -> Placement:
    check_range(fd, 0, length, "placement")
    if length > _PLACEMENT_LIMIT:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_SIZE,
            "placement",
            found=f"{length} bytes",
            expected=f"at most {_PLACEMENT_LIMIT}",
        )
    return Placement.decode(os.pread(fd, length, 0))


def _check_target(meta: GraphMeta, platform: str, runtime: Runtime, subject: str) -> None:
    """Refuse a blob that is for another platform, or not configured as this compiler does it."""
    if meta.platform != platform:
        hint = "compile the model for this device"
        raise _invalid(
            f"{subject}, platform", found=f"'{meta.platform}'", expected=f"'{platform}'", hint=hint
        )
    settings = options.effective(meta.config, platform, subject)
    if meta.config != settings.engine:
        raise _invalid(f"{subject}, config", found=f"{meta.config}", expected=f"{settings.engine}")
    if meta.precision != settings.precision:
        raise _invalid(
            f"{subject}, precision", found=f"'{meta.precision}'", expected=f"'{settings.precision}'"
        )
    options.with_precision(settings, runtime.capabilities, subject)


def _check_strict(meta: GraphMeta, subject: str) -> None:
    """Refuse a blob not compiled in strict mode."""
    if meta.config.get(options.STRICT) != "YES":
        raise _invalid(
            f"{subject}, config",
            found=f"compiled without {options.STRICT}",
            expected="a model that a strict compiler has taken, as this daemon is strict",
            hint="compile the model again",
        )


def _check_content(
    reader: BlobReader,
    meta: GraphMeta,
    actual: dict[int, int],
    space: WeightSpace,
    runtime: Runtime,
    stages: Stages,
) -> None:
    """Refuse a blob whose IR cannot be read or is not what its metadata says."""
    from softnpu.emulator.compiler import checks, dynamic_states, ir, states

    subject = f"model '{meta.name}'"
    checks.check_count(meta.arguments, subject)
    stages.begin("read")
    xml = with_actual_offsets(bytes(reader.read(Section.IR)), actual)
    model = ir.read(runtime.core, xml, space, subject, ZeResult.ERROR_INVALID_NATIVE_BINARY)
    stages.begin("check")
    # the engine binds client memory by what the metadata says, so it has to be what the IR says
    described = checks.arguments(model, subject)
    plan = kernel_plan.read(reader)
    if plan is not None:
        described = imported_kernels.without_values(described, plan, meta.arguments, subject)
    hidden = states.variables(model)
    are_dynamic = plan is None and dynamic_states.are_dynamic(meta.arguments, meta.states)
    if are_dynamic:
        described, expected = _dynamic_states(model, described, meta.states, subject)
        if meta.states != expected:
            raise _invalid(f"{subject}, states", found=f"{meta.states}", expected=f"{expected}")
    in_metadata, in_ir = _binding(meta.arguments), _binding(described)
    if in_metadata != in_ir:
        raise _invalid(
            f"{subject}, arguments", found=_first_difference(in_metadata, in_ir), expected="those of the IR"
        )
    wrong = states.check(meta.arguments, meta.states)
    if wrong is not None:
        raise _invalid(
            f"{subject}, states", found=wrong, expected="an input and an output of its own for every variable"
        )
    if hidden and not are_dynamic:
        raise _invalid(
            f"{subject}, IR", found=f"a ReadValue or Assign of '{hidden[0]}'", expected="states as arguments"
        )


def _dynamic_states(
    model: ov.Model, described: tuple[ArgumentMeta, ...], kept: Sequence[StateMeta], subject: str
) -> tuple[tuple[ArgumentMeta, ...], tuple[StateMeta, ...]]:
    from softnpu.emulator.compiler import dynamic_states

    widened = {state.variable for state in kept if state.element_type}
    try:
        return dynamic_states.described(model, described, subject, widened)
    except Refused as error:
        info = error.info
        raise _invalid(info.object, found=info.found, expected=info.expected, hint=info.hint) from error


def _embedding_all(reference: WeightsReference) -> WeightsReference:
    constants = tuple(
        msgspec.structs.replace(constant, embedded=constant.offset) for constant in reference.constants
    )
    return WeightsReference(size=reference.size, constants=constants)


def _constants(
    reference: WeightsReference, actual: dict[int, int], space: WeightSpace
) -> Iterator[bytes | memoryview]:
    at = 0
    for constant in reference.constants:
        yield from _zeros(constant.offset - at)
        start, at = actual[constant.offset], constant.offset + constant.length
        for begin in range(start, start + constant.length, _CHUNK):
            yield space.view[begin : min(begin + _CHUNK, start + constant.length)]
    yield from _zeros(reference.size - at)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, _CHUNK))
        count -= _CHUNK


def _as_is(reader: BlobReader, section: Section) -> tuple[int, Callable[[], Iterator[bytes | memoryview]]]:
    data = reader.read(section)
    return len(data), lambda: iter([data])


def _write(fd: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def _binding(arguments: tuple[ArgumentMeta, ...]) -> list[str]:
    """Return the properties relevant to binding, one line per argument; names vary by OpenVINO version."""
    return [
        f"{'input' if argument.input else 'output'} {argument.element_type} {list(argument.shape)}"
        f" {argument.byte_size} bytes{_dynamism(argument)}"
        for argument in arguments
    ]


def _dynamism(argument: ArgumentMeta) -> str:
    text = f" for the shape of argument {argument.shape_of}" if argument.shape_of >= 0 else ""
    if argument.is_dynamic:
        text += f" for {argument.partial_shape}{', unbounded' if argument.unbounded else ''}"
    return text


def _first_difference(in_metadata: list[str], in_ir: list[str]) -> str:
    if len(in_metadata) != len(in_ir):
        return f"{len(in_metadata)} arguments, the IR has {len(in_ir)}"
    return next(
        f"argument {index} is {a}, in the IR {b}"
        for index, (a, b) in enumerate(zip(in_metadata, in_ir, strict=True))
        if a != b
    )


def _invalid(subject: str, *, found: str, expected: str, hint: str = "compile the model again") -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_NATIVE_BINARY, f"blob, {subject}", found=found, expected=expected, hint=hint
    )
