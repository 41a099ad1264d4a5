"""What every plan of an engine takes at least, known before any plan is made.

Choices among engines begin with the one whose floor is lowest, and pass over those whose floor is above what is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.gemm.tiles import UNITS
from lowdnn.engines.gemm.wgmma_tiles import wgmma_type
from lowdnn.engines.launch import bytes_touched, fma_unit
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation

Contraction = ConvolutionOperation | MatmulOperation


@dataclass(frozen=True)
class Floor:
    """Of an engine's plans for a graph with one contraction.

    launches: how many.  waste: their operations, as a multiple of those of the contraction.
    is_mma_sync: they stay with mma.sync where the architecture has faster tensor cores, and with launches that wait
    for the end of the one before.
    """

    launches: int = 1
    waste: float = 1.0
    is_mma_sync: bool = False


@runtime_checkable
class Floored(Protocol):
    """An engine that knows more than its notes say; the graph may be one that it refuses."""

    def floor(self, contraction: Contraction) -> Floor: ...


class LeastTime(NamedTuple):
    """How many launches there are, how many of them may overlap the one before; seconds of arithmetic and of copying."""

    launches: int
    overlapping: int
    arithmetic_s: float
    copy_s: float


def least_time(engine: Engine, graph: OperationGraph, arch: ArchSpec) -> LeastTime:
    """Contractions run at the attained rate of the tensor cores that the engine uses, or of the FMA units.

    Each tensor in memory is moved once. What is no contraction counts as nothing.
    """
    launches, overlapping, arithmetic_s = 1, 0, 0.0
    for contraction in graph.derive(_contractions):
        floor = engine.floor(contraction) if isinstance(engine, Floored) else Floor()
        launches = max(launches, floor.launches)
        if NumericalNote.TENSOR_CORE in engine.numerical_notes and not floor.is_mma_sync:
            overlapping = launches
        arithmetic_s += floor.waste * contraction.flops / _rate(engine, floor, contraction, arch)
    return LeastTime(launches, overlapping, arithmetic_s, graph.derive(_moved_bytes) / arch.copy_bytes_per_s)


def _rate(engine: Engine, floor: Floor, contraction: Contraction, arch: ArchSpec) -> float:
    data_type = next(iter(inputs_of(contraction).values())).data_type
    units = [fma_unit(data_type)]
    if NumericalNote.TENSOR_CORE in engine.numerical_notes:
        instruction = None if floor.is_mma_sync else wgmma_type(data_type, data_type)
        tensor_cores = (UNITS.get(data_type), instruction.unit if instruction else None)
        units = [unit for unit in tensor_cores if unit is not None and unit in arch.flops_per_clock] or units
    return max(map(arch.attained_rate, units))


def _contractions(graph: OperationGraph) -> tuple[Contraction, ...]:
    return tuple(op for op in graph.operations if isinstance(op, Contraction))


def _moved_bytes(graph: OperationGraph) -> int:
    return sum(bytes_touched(tensor) for tensor in graph.tensors.values() if not tensor.is_virtual)
