"""What every plan of an engine takes at least, known before any plan is made.

Choices among engines begin with the one whose floor is lowest, and pass over those whose floor is above what is found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.gemm.tiles import UNITS
from lowdnn.engines.gemm.wgmma_tiles import wgmma_type
from lowdnn.engines.launch import bytes_touched, fma_unit
from lowdnn.enums import DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.plan import MathUnit

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


class Floored(ABC):
    """An engine that knows more than its notes say."""

    @abstractmethod
    def floor(self, contraction: Contraction) -> Floor:
        """Of plans for a graph with ``contraction``, which may be one that the engine refuses."""


class LeastTime(NamedTuple):
    """Launches, those of them that may overlap the one before, and seconds of arithmetic and of copying."""

    launches: int
    overlapping: int
    arithmetic_s: float
    copy_s: float


def least_time(engine: Engine, graph: OperationGraph, arch: ArchSpec) -> LeastTime:
    """A contraction runs at the attained rate of the fastest unit that the engine uses; what is none takes no time.

    Each tensor in memory is moved once.
    """
    contraction = graph.derive(_contraction)
    floor = engine.floor(contraction) if contraction is not None and isinstance(engine, Floored) else _PLAIN
    return graph.derive(_least_time, floor, NumericalNote.TENSOR_CORE in engine.numerical_notes, arch)


_PLAIN = Floor()


def _least_time(graph: OperationGraph, floor: Floor, on_tensor_cores: bool, arch: ArchSpec) -> LeastTime:
    contraction, copy_s = graph.derive(_contraction), graph.derive(_moved_bytes) / arch.copy_bytes_per_s
    arithmetic_s = 0.0
    if contraction is not None:
        data_type = next(iter(inputs_of(contraction).values())).data_type
        units = _tensor_core_units(data_type, floor, arch) if on_tensor_cores else ()
        rate = max(arch.attained_rate(unit) for unit in units or (fma_unit(data_type),))
        arithmetic_s = floor.waste * contraction.flops / rate
    overlapping = floor.launches if on_tensor_cores and not floor.is_mma_sync else 0
    return LeastTime(floor.launches, overlapping, arithmetic_s, copy_s)


def _tensor_core_units(data_type: DataType, floor: Floor, arch: ArchSpec) -> tuple[MathUnit, ...]:
    """Those of ``arch`` that multiply ``data_type``."""
    instruction = None if floor.is_mma_sync else wgmma_type(data_type, data_type)
    units = (UNITS.get(data_type), instruction.unit if instruction is not None else None)
    return tuple(unit for unit in units if unit is not None and unit in arch.flops_per_clock)


def _contraction(graph: OperationGraph) -> Contraction | None:
    """The graph's only one; engines take no graph with several."""
    found = [op for op in graph.operations if isinstance(op, Contraction)]
    return found[0] if len(found) == 1 else None


def _moved_bytes(graph: OperationGraph) -> int:
    return sum(bytes_touched(tensor) for tensor in graph.tensors.values() if not tensor.is_virtual)
