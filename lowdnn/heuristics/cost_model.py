"""How long a plan takes, estimated from the plan and the architecture's facts alone.

    time(plan)   = sum over its launches of time(launch)
    time(launch) = overhead + longer + exposed * shorter, of arithmetic and copying
    arithmetic   = flops / (attained rate * utilisation)
    copying      = bytes / (bandwidth * reach)
    utilisation  = blocks / (sm_count * ceil(blocks / sm_count))
    reach        = min(1, 2 * blocks / sm_count)

Utilisation is the share of multiprocessors that have work while the longest-running one finishes (wave quantisation).
Memory has no such waves: half of the multiprocessors keep it busy. The bytes are those that a launch must move at least
once; re-reads are taken to hit the L2 cache. The model is there to put plans in order: it is right about what limits a
launch, not about its microseconds. Attained rates are facts of the architecture for each math unit
(``ArchSpec.attained``): a path of its own, such as wgmma, is a unit of its own.
"""

from __future__ import annotations

from enum import Enum, auto
from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.conv.grouped.conv_grouped_mma import ConvGroupedMma
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.engines.gemm.tiles import UNITS
from lowdnn.engines.gemm.wgmma_tiles import wgmma_type
from lowdnn.engines.launch import bytes_touched, fma_unit
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.enums import DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.plan import Launch, MathUnit, Plan

#: The share of the shorter of arithmetic and copying that the longer one does not hide: an estimate, which puts the
#: kernel with faster arithmetic first where memory limits both.
_EXPOSED = 0.1
#: Of the launch overhead, where a kernel starts while the one before it ends; measured on an H200.
_DEPENDENT_LAUNCH_SAVES_S = 0.6e-6


def plan_us(plan: Plan, arch: ArchSpec) -> float:
    """Estimated microseconds of one execution of ``plan``."""
    return sum(launch_us(launch, arch) for launch in plan.launches)


def launch_us(launch: Launch, arch: ArchSpec) -> float:
    """Estimated microseconds from the end of the kernel before to the end of this one."""
    work, blocks = launch.work, prod(launch.grid)
    arithmetic_s = work.flops / (arch.attained_rate(work.unit) * utilisation(blocks, arch.sm_count))
    copy_s = work.bytes / (arch.copy_bytes_per_s * _reach(blocks, arch.sm_count))
    saved_s = _DEPENDENT_LAUNCH_SAVES_S if launch.overlaps_previous else 0.0
    return 1e6 * (arch.launch_overhead_s - saved_s + _busy_s(arithmetic_s, copy_s))


def utilisation(blocks: int, sm_count: int) -> float:
    """Share of the multiprocessors kept busy by ``blocks`` equal blocks, in (0, 1]."""
    if blocks <= 0:
        return 1.0
    waves = -(-blocks // sm_count)
    return blocks / (sm_count * waves)


def _reach(blocks: int, sm_count: int) -> float:
    """Share of the memory's rate that ``blocks`` can draw, in (0, 1]."""
    return min(2 * blocks / sm_count, 1.0) if blocks > 0 else 1.0


def bound_us(graph: OperationGraph, engine: Engine, arch: ArchSpec) -> float:
    """A time that no plan of ``engine`` is estimated to beat: one launch, no waste.

    Contractions run at the rate of the fastest tensor cores that the engine uses, all else on the FMA units.
    """
    path = _MathPath.MMA if isinstance(engine, _MMA_ENGINES) else _MathPath.ANY
    return graph.derive(_bound_us, path if NumericalNote.TENSOR_CORE in engine.numerical_notes else _MathPath.FMA, arch)


class _MathPath(Enum):
    """What an engine's contractions run on: no tensor cores, those of mma.sync, or the fastest that there are."""

    FMA = auto()
    MMA = auto()
    ANY = auto()


#: Engines that stay with mma.sync where the architecture has something faster.
_MMA_ENGINES = (ConvImplicitGemmMma, ConvGroupedMma, MatmulMma)


def _bound_us(graph: OperationGraph, path: _MathPath, arch: ArchSpec) -> float:
    contractions = [op for op in graph.operations if isinstance(op, (ConvolutionOperation, MatmulOperation))]
    arithmetic_s = sum(_contraction_s(op, path, arch) for op in contractions)
    copy_s = graph.derive(_moved_bytes) / arch.copy_bytes_per_s
    return 1e6 * (arch.launch_overhead_s + _busy_s(arithmetic_s, copy_s))


def _busy_s(arithmetic_s: float, copy_s: float) -> float:
    return max(arithmetic_s, copy_s) + _EXPOSED * min(arithmetic_s, copy_s)


def _contraction_s(operation: Operation, path: _MathPath, arch: ArchSpec) -> float:
    data_type = next(iter(inputs_of(operation).values())).data_type
    units = _tensor_core_units(data_type, path, arch) or (fma_unit(data_type),)
    return min(operation.flops / arch.attained_rate(unit) for unit in units)


def _tensor_core_units(data_type: DataType, path: _MathPath, arch: ArchSpec) -> tuple[MathUnit, ...]:
    """Those of ``arch`` on ``path`` that multiply ``data_type``."""
    if path is _MathPath.FMA:
        return ()
    instruction = wgmma_type(data_type, data_type) if path is _MathPath.ANY else None
    units = (UNITS.get(data_type), instruction.unit if instruction is not None else None)
    return tuple(unit for unit in units if unit is not None and unit in arch.flops_per_clock)


def _moved_bytes(graph: OperationGraph) -> int:
    return sum(bytes_touched(tensor) for tensor in graph.tensors.values() if not tensor.is_virtual)
