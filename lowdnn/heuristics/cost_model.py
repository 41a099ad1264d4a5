"""How long a plan takes, estimated from the plan and the architecture's facts alone.

    time(plan)   = sum over its launches of time(launch)
    time(launch) = overhead + max(flops / attained rate, bytes / bandwidth) / utilisation
    utilisation  = blocks / (sm_count * ceil(blocks / sm_count))

Utilisation is the share of multiprocessors that have work while the longest-running one finishes (wave quantisation).
The bytes are those that a launch must move at least once; re-reads are taken to hit the L2 cache. The model is there to
put plans in order: it is right about what limits a launch, not about its microseconds. Attained rates are facts of the
architecture for each math unit (``ArchSpec.attained``): a path of its own, such as wgmma, is a unit of its own.
"""

from __future__ import annotations

from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.gemm.tiles import UNITS
from lowdnn.engines.launch import bytes_touched, fma_unit
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of
from lowdnn.ops.convolution import ConvolutionForward
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.plan import Launch, MathUnit, Plan


def plan_us(plan: Plan, arch: ArchSpec) -> float:
    """Estimated microseconds of one execution of ``plan``."""
    return sum(launch_us(launch, arch) for launch in plan.launches)


def launch_us(launch: Launch, arch: ArchSpec) -> float:
    """Estimated microseconds from the end of the kernel before to the end of this one."""
    busy_s = _busy_s(launch.work.flops, launch.work.bytes, launch.work.unit, arch)
    return 1e6 * (arch.launch_overhead_s + busy_s / utilisation(prod(launch.grid), arch.sm_count))


def utilisation(blocks: int, sm_count: int) -> float:
    """Share of the multiprocessors kept busy by ``blocks`` equal blocks, in (0, 1]."""
    if blocks <= 0:
        return 1.0
    waves = -(-blocks // sm_count)
    return blocks / (sm_count * waves)


def bound_us(graph: OperationGraph, numerical_notes: tuple[NumericalNote, ...], arch: ArchSpec) -> float:
    """A time that no plan of an engine with these notes is estimated to beat: one launch, no waste.

    Contractions run at the tensor cores' rate where the notes say TENSOR_CORE, all else on the FMA units.
    """
    on_tensor_cores = NumericalNote.TENSOR_CORE in numerical_notes
    contractions = [op for op in graph.operations if isinstance(op, (ConvolutionForward, MatmulOperation))]
    arithmetic_s = sum(_contraction_s(op, on_tensor_cores, arch) for op in contractions)
    copy_s = graph.derive(_moved_bytes) / arch.copy_bytes_per_s
    return 1e6 * (arch.launch_overhead_s + max(arithmetic_s, copy_s))


def _busy_s(flops: int, size_bytes: int, unit: MathUnit, arch: ArchSpec) -> float:
    return max(flops / (arch.attained_rate(unit)), size_bytes / arch.copy_bytes_per_s)


def _contraction_s(operation: Operation, on_tensor_cores: bool, arch: ArchSpec) -> float:
    data_type = next(iter(inputs_of(operation).values())).data_type
    unit = fma_unit(data_type)
    if on_tensor_cores:
        unit = UNITS.get(data_type, unit)
    return _busy_s(operation.flops, 0, unit, arch)


def _moved_bytes(graph: OperationGraph) -> int:
    return sum(bytes_touched(tensor) for tensor in graph.tensors.values() if not tensor.is_virtual)
