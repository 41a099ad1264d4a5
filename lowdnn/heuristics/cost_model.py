"""How long a plan takes, estimated from the plan and the architecture's facts alone.

    time(plan)   = sum over its launches of time(launch)
    time(launch) = overhead + meeting of a cooperative grid + busy
    busy         = longer + exposed * shorter, of arithmetic and copying, or work.busy_s if longer
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

from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.floor import Floor, Modelled, floor_of, least_time
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import Launch, Plan

#: The share of the shorter of arithmetic and copying that the longer one does not hide: an estimate, which puts the
#: kernel with faster arithmetic first where memory limits both.
_EXPOSED = 0.1


def plan_us(plan: Plan, arch: ArchSpec) -> float:
    """Estimated microseconds of one execution of ``plan``."""
    return sum(launch_us(launch, arch) for launch in plan.launches)


def launch_us(launch: Launch, arch: ArchSpec) -> float:
    """Estimated microseconds from the end of the kernel before to the end of this one."""
    work, blocks = launch.work, prod(launch.grid)
    arithmetic_s = work.flops / (arch.attained_rate(work.unit) * utilisation(blocks, arch.sm_count))
    copy_s = work.bytes / (arch.copy_bytes_per_s * _reach(blocks, arch.sm_count))
    saved_s = arch.timings.dependent_launch_saves_s if launch.overlaps_previous else 0.0
    meeting_s = arch.timings.grid_meeting_s if launch.cooperative else 0.0
    busy_s = max(_busy_s(arithmetic_s, copy_s), work.busy_s)
    return 1e6 * (arch.timings.launch_s - saved_s + meeting_s + busy_s)


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
    """A time that no plan of ``engine`` is estimated to beat: its floor, with every multiprocessor at work."""
    return graph.derive(_bound_us, floor_of(engine, graph), arch)


def near_bound_us(graph: OperationGraph, engine: Engine, arch: ArchSpec) -> float:
    """The same for a graph that ``engine`` takes, and dearer: where its model tells, near what its plan takes."""
    bound = bound_us(graph, engine, arch)
    has_elements = all(tensor.element_count for tensor in graph.outputs)
    if not isinstance(engine, Modelled) or not has_elements:
        return bound
    return max(bound, launch_us(graph.derive(engine.busy_launch, arch), arch))


def _bound_us(graph: OperationGraph, floor: Floor, arch: ArchSpec) -> float:
    """Any launch may begin while the one before ends."""
    least = least_time(graph, floor, arch)
    launch_s = arch.timings.launch_s - arch.timings.dependent_launch_saves_s
    return 1e6 * (floor.launches * launch_s + _busy_s(least.arithmetic_s, least.copy_s))


def _busy_s(arithmetic_s: float, copy_s: float) -> float:
    return max(arithmetic_s, copy_s) + _EXPOSED * min(arithmetic_s, copy_s)
