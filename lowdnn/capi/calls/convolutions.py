"""Convolutions in three directions: algorithms, workspaces, execution.

An algorithm stands for a plan of its method: ``convolution_algorithms``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.convolution_algorithms import BACKWARD_DATA, BACKWARD_FILTER, FORWARD, Direction
from lowdnn.capi.calls.shared import read_scale, was_set
from lowdnn.capi.classic_enums import Determinism
from lowdnn.capi.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Builder, Launched, Planned
from lowdnn.capi.memory import Address, checked, write_array, write_bytes, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import CudnnEnum, HeurMode, MathType, NumericalNote
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.event import Event
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import BadParamError, LowdnnError, Status

#: Stand-in addresses with the largest alignment that an engine needs, for calls without addresses.
_ALIGNED_EACH: Final = (256,) * 3
#: algorithm, status, time, memory, determinism, mathType, reserved: the three structures of results.
_PERFORMANCE = struct.Struct("=iif4xQii3i4x")


@dataclass(frozen=True)
class Problem:
    """The convolution of one call: its descriptors in the order of the direction's ports, and their addresses."""

    direction: Direction
    convolution: ConvolutionDescriptor
    tensors: tuple[TensorDescriptor | FilterDescriptor, ...]
    addresses: tuple[Address, ...]

    @classmethod
    def of(
        cls, state: State, where: str, direction: Direction, convolution: Address, descriptors: tuple[Address, ...],
        addresses: tuple[Address, ...] = _ALIGNED_EACH,
    ) -> Problem:  # fmt: skip
        tensors = tuple(
            was_set(state, address, FilterDescriptor, f"{where}.{port}Desc")
            if port in ("w", "dw")
            else was_set(state, address, TensorDescriptor, f"{where}.{port}Desc")
            for address, port in zip(descriptors, direction.ports, strict=True)
        )
        found = was_set(state, convolution, ConvolutionDescriptor, f"{where}.convDesc")
        return cls(direction, found, tensors, addresses)

    @property
    def mode(self) -> HeurMode:
        """FMA_MATH asks for true fp32, without tensor cores."""
        return HeurMode.FALLBACK if self.convolution.math_type is MathType.FMA_MATH else HeurMode.A

    def math_type(self, *, uses_tensor_cores: bool) -> MathType:
        """The math type that a candidate computes with, for which ``mode`` is what it is for this problem."""
        if self.mode is HeurMode.FALLBACK:
            return MathType.FMA_MATH
        return MathType.TENSOR_OP_MATH if uses_tensor_cores else MathType.DEFAULT_MATH

    def built(self, where: str, scales: tuple[float, float] = (1.0, 0.0)) -> Builder:
        """The graph: c = alpha * convolution(a, b) + beta * c."""
        builder, (*_, result) = Builder(), self.direction.ports
        operands = {
            port: builder.tensor(tensor, address, f"{where}.{port}")
            for port, tensor, address in zip(self.direction.ports[:2], self.tensors, self.addresses, strict=False)
        }
        self.check_groups(where)

        def write(c: Tensor) -> None:
            ports = operands | {result: c}
            builder.operations.append(self.direction.operation(geometry(self.convolution), **ports))

        builder.store(write, self.tensors[2], self.addresses[2], scales, f"{where}.{result}")
        return builder

    def check_groups(self, where: str) -> None:
        """Raises BadParamError where the filter's channels are not those of a group."""
        by_port = dict(zip(self.direction.ports, self.tensors, strict=True))
        image = by_port.get("x") or by_port["dx"]
        filters = by_port.get("w") or by_port["dw"]
        if image.dims[1] != filters.dims[1] * self.convolution.group_count:
            expected = f"{filters.dims[1]} * {self.convolution.group_count} groups"
            raise BadParamError.at(f"{where}.channels", expected=expected, got=image.dims[1])

    def planned(self, state: State, handle: Handle, where: str) -> Planned:
        """The plans for alpha 1, beta 0 and aligned tensors, which all answers about algorithms refer to."""
        return state.graphs.planned(handle, replace(self, addresses=_ALIGNED_EACH).built(where), self.mode)


def geometry(of: ConvolutionDescriptor) -> Convolution:
    """The descriptor as the attribute that operations take."""
    return Convolution(of.compute_type, len(of.paddings), of.paddings, of.paddings, of.strides, of.dilations, of.mode)


def _calls_of(direction: Direction) -> dict[str, Call]:
    """The six functions of a direction."""
    get, find = (f"cudnn{verb}Convolution{direction.name}" for verb in ("Get", "Find"))
    makers: dict[str, Callable[[Direction, str], Call]] = {
        f"cudnnConvolution{direction.name}": _run,
        f"{get}WorkspaceSize": _workspace_size,
        f"{get}AlgorithmMaxCount": _max_count,
        f"{get}Algorithm_v7": _get_algorithms,
        f"{find}Algorithm": _find_algorithms,
        f"{find}AlgorithmEx": _find_algorithms_ex,
    }
    return {name: make(direction, name) for name, make in makers.items()}


def _run(direction: Direction, name: str) -> Call:
    def run(
        state: State, handle: Address, alpha: Address, a_desc: Address, a: Address, b_desc: Address, b: Address,
        convolution: Address, algorithm: int, workspace: Address, workspace_bytes: int, beta: Address,
        c_desc: Address, c: Address,
    ) -> Launched:  # fmt: skip
        user = state.objects.get(handle, Handle, f"{name}.handle")
        problem = Problem.of(state, name, direction, convolution, (a_desc, b_desc, c_desc), (a, b, c))
        data_type = problem.tensors[2].data_type
        scales = (read_scale(alpha, data_type, f"{name}.alpha"), read_scale(beta, data_type, f"{name}.beta"))
        builder = problem.built(name, scales)
        place = _place(state, user, problem, builder, algorithm, name)

        def told_bytes() -> int:
            return size_anywhere(_told(state, user, problem, algorithm, name).plan.workspace_bytes)

        given = (workspace, workspace_bytes)
        return state.graphs.run(user, builder, name, given, place, problem.mode, told_bytes=told_bytes)

    return run


def _place(state: State, handle: Handle, problem: Problem, builder: Builder, algorithm: int, name: str) -> int:
    """The index of the candidate for the graph as it is: the first one of the engine that the algorithm stands for,
    otherwise the best one."""
    planned = state.graphs.planned(handle, builder, problem.mode)
    if problem.direction.is_best(algorithm, planned, f"{name}.algo"):
        return 0
    told = problem.planned(state, handle, name)
    place = problem.direction.place(algorithm, told, f"{name}.algo")
    if planned is told:
        return place
    wanted = told.candidates[place].engine
    return next((index for index, found in enumerate(planned.candidates) if found.engine is wanted), 0)


def _told(state: State, handle: Handle, problem: Problem, algorithm: int, name: str) -> Candidate:
    """The candidate of the aligned problem that the algorithm stands for, which the caller's queries have described."""
    planned = problem.planned(state, handle, name)
    return planned.candidate(problem.direction.place(algorithm, planned, f"{name}.algo"), f"{name}.algo")


def _workspace_size(direction: Direction, name: str) -> Call:
    def workspace_size(
        state: State, handle: Address, a_desc: Address, b_desc: Address, convolution: Address, c_desc: Address,
        algorithm: int, size: Address,
    ) -> None:  # fmt: skip
        user = state.objects.get(handle, Handle, f"{name}.handle")
        problem = Problem.of(state, name, direction, convolution, (a_desc, b_desc, c_desc))
        needed = size_anywhere(_told(state, user, problem, algorithm, name).plan.workspace_bytes)
        write_outputs((size, "Q", needed, f"{name}.sizeInBytes"))

    return workspace_size


def _max_count(direction: Direction, name: str) -> Call:
    def max_count(state: State, handle: Address, count: Address) -> None:
        state.objects.get(handle, Handle, f"{name}.handle")
        write_outputs((count, "i", len(direction.order), f"{name}.count"))

    return max_count


def _get_algorithms(direction: Direction, name: str) -> Call:
    def get_algorithms(
        state: State, handle: Address, a_desc: Address, b_desc: Address, convolution: Address, c_desc: Address,
        requested: int, returned: Address, results: Address,
    ) -> None:  # fmt: skip
        user = state.objects.get(handle, Handle, f"{name}.handle")
        problem = Problem.of(state, name, direction, convolution, (a_desc, b_desc, c_desc))
        candidates = problem.planned(state, user, name).candidates
        rows = [_row(problem, number, candidate) for number, _, candidate in _numbered(direction, candidates)]
        _write_rows(name, rows, requested, returned, results)

    return get_algorithms


def _find_algorithms(direction: Direction, name: str) -> Call:
    def find_algorithms(
        state: State, handle: Address, a_desc: Address, b_desc: Address, convolution: Address, c_desc: Address,
        requested: int, returned: Address, results: Address,
    ) -> None:  # fmt: skip
        user = state.objects.get(handle, Handle, f"{name}.handle")
        given = Problem.of(state, name, direction, convolution, (a_desc, b_desc, c_desc))
        _check_results(name, requested, returned, results)
        with ExitStack() as memory:
            addresses = []
            for tensor in given.tensors:
                buffer = memory.enter_context(DeviceBuffer.allocate(user.runtime.context, tensor.size_bytes))
                buffer.fill_bytes(0)
                addresses.append(buffer.address)
            rows = _timed(state, user, replace(given, addresses=tuple(addresses)), name, None)
            user.synchronize()
        _write_rows(name, rows, requested, returned, results)

    return find_algorithms


def _find_algorithms_ex(direction: Direction, name: str) -> Call:
    def find_algorithms_ex(
        state: State, handle: Address, a_desc: Address, a: Address, b_desc: Address, b: Address, convolution: Address,
        c_desc: Address, c: Address, requested: int, returned: Address, results: Address, workspace: Address,
        workspace_bytes: int,
    ) -> None:  # fmt: skip
        user = state.objects.get(handle, Handle, f"{name}.handle")
        problem = Problem.of(state, name, direction, convolution, (a_desc, b_desc, c_desc), (a, b, c))
        _check_results(name, requested, returned, results)
        rows = _timed(state, user, problem, name, (workspace, workspace_bytes))
        _write_rows(name, rows, requested, returned, results)

    return find_algorithms_ex


def _numbered(direction: Direction, candidates: Sequence[Candidate]) -> list[tuple[CudnnEnum, int, Candidate]]:
    """Each algorithm, and the candidate that it stands for with its place; best first."""
    return [(number, place, candidates[place]) for number, place in direction.places(candidates).items()]


def _timed(
    state: State, handle: Handle, problem: Problem, where: str, workspace: tuple[Address, int] | None
) -> list[bytes]:
    """Runs each candidate, and returns their times, fastest first; then the candidates that failed, with their
    statuses."""
    builder = problem.built(where)
    planned = state.graphs.planned(handle, builder, problem.mode)
    timed, failed = [], []
    numbered = _numbered(problem.direction, planned.candidates)
    for _, _, candidate in numbered:
        handle.begin(candidate.plan)
    for number, place, candidate in numbered:
        try:
            # The first run compiles and loads the kernels, so it is not timed.
            state.graphs.run(handle, builder, where, workspace, place, problem.mode)
            milliseconds = _milliseconds(state, handle, problem, builder, where, workspace, place)
        except LowdnnError as error:
            failed.append(_row(problem, number, candidate, status=error.status))
            continue
        timed.append((milliseconds, _row(problem, number, candidate, milliseconds)))
    return [row for _, row in sorted(timed, key=lambda found: found[0])] + failed


def _milliseconds(
    state: State, handle: Handle, problem: Problem, builder: Builder, where: str,
    workspace: tuple[Address, int] | None, place: int,
) -> float:  # fmt: skip
    context, stream = handle.runtime.context, handle.borrowed_stream()
    with Event.create(context) as start, Event.create(context) as end:
        start.record(stream)
        state.graphs.run(handle, builder, where, workspace, place, problem.mode)
        end.record(stream)
        end.synchronize()
        return end.elapsed_ms(start)


def _row(
    problem: Problem,
    number: CudnnEnum,
    candidate: Candidate,
    milliseconds: float = -1.0,
    status: Status = Status.SUCCESS,
) -> bytes:
    """One element of the array of results; a time of -1 means that it was not measured.

    The math type is one with which the algorithm's number stands for the same candidate.
    """
    notes = candidate.engine.numerical_notes
    is_ordered = NumericalNote.NONDETERMINISTIC not in notes
    return _PERFORMANCE.pack(
        number,
        status,
        milliseconds,
        size_anywhere(candidate.plan.workspace_bytes),
        Determinism.DETERMINISTIC if is_ordered else Determinism.NON_DETERMINISTIC,
        problem.math_type(uses_tensor_cores=NumericalNote.TENSOR_CORE in notes),
        0,
        0,
        0,
    )


def _check_results(where: str, requested: int, returned: Address, results: Address) -> None:
    if requested < 1:
        raise BadParamError.at(f"{where}.requestedAlgoCount", expected="1 or more", got=requested)
    checked(returned, f"{where}.returnedAlgoCount")
    checked(results, f"{where}.perfResults")


def _write_rows(where: str, rows: Sequence[bytes], requested: int, returned: Address, results: Address) -> None:
    _check_results(where, requested, returned, results)
    shown = rows[:requested]
    write_bytes(results, b"".join(shown), f"{where}.perfResults")
    write_array(returned, "i", (len(shown),), f"{where}.returnedAlgoCount")


CALLS: Mapping[str, Call] = {
    **_calls_of(FORWARD),
    **_calls_of(BACKWARD_DATA),
    **_calls_of(BACKWARD_FILTER),
}
