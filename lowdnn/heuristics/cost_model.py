"""Times of plans that a ranking knows beside their estimates: bounds before a plan is made, and passages of blocks."""

from __future__ import annotations

from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.floor import Floor, Modelled, floor_of, least_time
from lowdnn.engines.model.clock import launch_s, overlap
from lowdnn.engines.model.occupancy import resident_blocks
from lowdnn.engines.model.plan_time import EXPOSED, launch_us
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import Launch, Plan


def passage_us(plan: Plan, arch: ArchSpec) -> float:
    """Microseconds in which the blocks of ``plan`` pass through the device, if each lives for one load.

    The bytes of a plan do not tell how many threads share them. This time does, and sets apart plans of one engine
    whose knobs its own search would not have chosen.
    """
    timings = arch.timings
    return sum(1e6 * (timings.launch_s + timings.load_latency_s * _rounds(launch, arch)) for launch in plan.launches)


def _rounds(launch: Launch, arch: ArchSpec) -> float:
    """How often the blocks of a launch fill the device, as far as threads and shared memory allow."""
    resident = resident_blocks(arch, prod(launch.block), shared_bytes=launch.shared_bytes)
    return prod(launch.grid) / (max(resident, 1) * arch.sm_count)


def bound_us(graph: OperationGraph, engine: Engine, arch: ArchSpec) -> float:
    """A time that no plan of ``engine`` is estimated to beat: its floor, with every multiprocessor at work."""
    return graph.derive(_bound_us, floor_of(engine, graph), arch)


def modelled_us(graph: OperationGraph, engine: Engine, arch: ArchSpec) -> float:
    """The time by the model of ``engine`` for a graph that it takes, at most its plan's; 0 where it has none."""
    if not isinstance(engine, Modelled) or not all(tensor.element_count for tensor in graph.outputs):
        return 0.0
    return launch_us(graph.derive(engine.busy_launch, arch), arch)


def _bound_us(graph: OperationGraph, floor: Floor, arch: ArchSpec) -> float:
    """Any launch may begin while the one before ends."""
    launches_s = floor.launches * launch_s(arch, 0.0, is_dependent=True)
    least = least_time(graph, floor, arch)
    return 1e6 * (launches_s + max(overlap(*least, EXPOSED), floor.slowness * max(least)))
