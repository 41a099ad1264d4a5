"""How long a plan takes, estimated from the plan and the architecture's facts alone.

    time(plan)   = sum over its launches of time(launch), by ``engines.model.clock``
    busy         = overlap of arithmetic and copying, or work.busy_s if longer
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
from lowdnn.engines.model.clock import launch_s, utilisation, work_s
from lowdnn.plan import Launch, Plan

#: The share of the shorter of arithmetic and copying that the longer one does not hide: an estimate, which puts the
#: kernel with faster arithmetic first where memory limits both.
EXPOSED = 0.1


def plan_us(plan: Plan, arch: ArchSpec) -> float:
    """Estimated microseconds of one execution of ``plan``."""
    return sum(launch_us(launch, arch) for launch in plan.launches)


def launch_us(launch: Launch, arch: ArchSpec) -> float:
    """Estimated microseconds from the end of the kernel before to the end of this one."""
    work, blocks = launch.work, prod(launch.grid)
    shares = utilisation(blocks, arch.sm_count), _reach(blocks, arch.sm_count)
    busy_s = max(work_s(work, arch, EXPOSED, *shares), work.busy_s)
    return 1e6 * launch_s(arch, busy_s, is_dependent=launch.overlaps_previous, is_cooperative=launch.cooperative)


def _reach(blocks: int, sm_count: int) -> float:
    """Share of the memory's rate that ``blocks`` can draw, in (0, 1]."""
    return min(2 * blocks / sm_count, 1.0) if blocks > 0 else 1.0
