"""Lower bounds of an engine's plans, known before any plan is made.

A choice among engines begins with the lowest floor, and skips engines whose floor is above the best time found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.gemm.instructions import MMA_UNITS, TRUE_FP32_TERMS, wgmma_type
from lowdnn.engines.launch import bytes_touched, fma_unit
from lowdnn.engines.model.clock import ALL_EXPOSED, launch_s, overlap, work_s
from lowdnn.engines.model.plan_time import EXPOSED, launch_us
from lowdnn.enums import DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_fp8_backward import SdpaFp8Backward
from lowdnn.plan import Launch, MathUnit

Contraction = ConvolutionOperation | MatmulOperation | MoeGroupedMatmul | MoeGroupedMatmulBackward | SdpaBackward


class Multipliers(IntEnum):
    """The units that an engine's contractions run on: FMA units, mma.sync, or the fastest tensor cores of the
    device, which attain more where each product is split into terms.
    """

    FMA = 0
    MMA_SYNC = 1
    FASTEST = 2
    FASTEST_IN_TERMS = 3

    @classmethod
    def fastest(cls, terms: int) -> Multipliers:
        return cls.FASTEST_IN_TERMS if terms > 1 else cls.FASTEST


class Floor(NamedTuple):
    """A lower bound of an engine's plans for a graph.

    launches: the number of launches.  waste: operations executed, relative to those of the contraction.
    reread_bytes: bytes of device memory that are read once more.  slowness: the time of a launch, by the engine's own
    model, as a least multiple of the longer of its arithmetic and its copying.
    """

    multipliers: Multipliers
    launches: int = 1
    waste: float = 1.0
    reread_bytes: int = 0
    slowness: float = 1.0


class Floored(ABC):
    """An engine with a better bound than follows from its notes."""

    @abstractmethod
    def floor(self, contraction: Contraction) -> Floor:
        """The floor of plans for a graph with ``contraction``, whether or not the engine takes it."""


class Rereading(ABC):
    """An engine that reads tensors several times."""

    @abstractmethod
    def reread_bytes(self, graph: OperationGraph) -> int:
        """Bytes that its plans read beyond each tensor once, for a graph that it may refuse."""


class Modelled(ABC):
    """An engine that models its plans' time before they are made, as its search for a tile does."""

    @abstractmethod
    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        """A launch that takes no longer than the plan with default knobs, for a graph that the engine takes."""


class LeastTime(NamedTuple):
    """Seconds of arithmetic alone, and of copying alone."""

    arithmetic_s: float
    copy_s: float


def floor_of(engine: Engine, graph: OperationGraph) -> Floor:
    """The floor of the engine's plans for ``graph``, whether or not it takes the graph."""
    contractions = graph.derive(_contractions)
    if len(contractions) == 1 and isinstance(engine, Floored):
        return engine.floor(contractions[0])
    if isinstance(engine, Rereading):
        return _FMA._replace(reread_bytes=engine.reread_bytes(graph))
    return _FASTEST if NumericalNote.TENSOR_CORE in engine.numerical_notes else _FMA


def least_time(graph: OperationGraph, floor: Floor, arch: ArchSpec) -> LeastTime:
    """The time of contractions at the attained rate of the multipliers, and of moving each tensor once.

    Other operations take no time.
    """
    work = graph.derive(_flops_and_rates, floor.multipliers, arch)
    arithmetic_s = sum(_arithmetic_s(flops, floor, rate) for flops, rate in work)
    moved_bytes = graph.derive(_moved_bytes) + floor.reread_bytes
    return LeastTime(arithmetic_s, moved_bytes / arch.copy_bytes_per_s)


def bound_us(graph: OperationGraph, engine: Engine, arch: ArchSpec) -> float:
    """A time that no plan of ``engine`` is estimated to beat: its floor, with every multiprocessor at work."""
    return graph.derive(_bound_us, floor_of(engine, graph), arch)


def modelled_us(graph: OperationGraph, engine: Engine, arch: ArchSpec) -> float:
    """The time by the model of ``engine`` for a graph that it takes, at most its plan's; 0 where it has none."""
    if not isinstance(engine, Modelled) or not all(tensor.element_count for tensor in graph.outputs):
        return 0.0
    return launch_us(graph.derive(engine.busy_launch, arch), arch)


def busy_time_s(launch: Launch, arch: ArchSpec) -> float:
    """An upper estimate of a launch's seconds without its overhead, in which nothing overlaps."""
    return work_s(launch.work, arch, ALL_EXPOSED)


def least_arithmetic_s(contraction: Contraction, engines: Iterable[Engine], arch: ArchSpec) -> float:
    """Seconds of a contraction's arithmetic, alone or in a larger graph, that no plan of ``engines`` goes below."""
    own = (engine for engine in engines if isinstance(engine, Floored) and isinstance(contraction, engine.anchors))
    floors = {_FASTEST, *(engine.floor(contraction) for engine in own)}
    return min(_arithmetic_s(contraction.flops, floor, _rate(contraction, floor.multipliers, arch)) for floor in floors)


_FMA, _FASTEST = Floor(Multipliers.FMA), Floor(Multipliers.FASTEST)


def _bound_us(graph: OperationGraph, floor: Floor, arch: ArchSpec) -> float:
    """Any launch may begin while the one before ends."""
    launches_s = floor.launches * launch_s(arch, 0.0, is_dependent=True)
    least = least_time(graph, floor, arch)
    return 1e6 * (launches_s + max(overlap(*least, EXPOSED), floor.slowness * max(least)))


def _arithmetic_s(flops: int, floor: Floor, rate: float) -> float:
    return floor.waste * flops / rate


def _flops_and_rates(graph: OperationGraph, multipliers: Multipliers, arch: ArchSpec) -> tuple[tuple[int, float], ...]:
    """(floating-point operations, rate) of each contraction."""
    return tuple(
        (contraction.flops, _rate(contraction, multipliers, arch)) for contraction in graph.derive(_contractions)
    )


def _rate(contraction: Contraction, multipliers: Multipliers, arch: ArchSpec) -> float:
    return max(map(arch.attained_rate, _units(contraction, multipliers, arch)))


def _units(contraction: Contraction, multipliers: Multipliers, arch: ArchSpec) -> list[MathUnit]:
    """The units of ``arch`` that can multiply the contraction's inputs; the FMA units if no others can."""
    data_type = _multiplied_type(contraction)
    found = [MMA_UNITS.get(data_type)] if multipliers >= Multipliers.MMA_SYNC else []
    terms = TRUE_FP32_TERMS if multipliers is Multipliers.FASTEST_IN_TERMS else 1
    if multipliers >= Multipliers.FASTEST and (instruction := wgmma_type(data_type, data_type, terms)):
        found.append(instruction.unit)
    return [unit for unit in found if unit is not None and unit in arch.flops_per_clock] or [fma_unit(data_type)]


def _multiplied_type(contraction: Contraction) -> DataType:
    """The type that is multiplied: that of the first input; gradients of attention widen fp8 to HALF."""
    if isinstance(contraction, SdpaFp8Backward):
        return DataType.HALF
    return next(iter(inputs_of(contraction).values())).data_type


def _contractions(graph: OperationGraph) -> tuple[Contraction, ...]:
    return tuple(op for op in graph.operations if isinstance(op, Contraction))


def _moved_bytes(graph: OperationGraph) -> int:
    return sum(bytes_touched(tensor) for tensor in graph.tensors.values() if not tensor.is_virtual)
