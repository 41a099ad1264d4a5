"""Plans that an engine lets other engines make, for a graph that replaces its own."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from math import inf
from operator import itemgetter

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.floor import Modelled, busy_time_s, floor_of, least_time
from lowdnn.engines.model.clock import NOTHING_EXPOSED, launch_s, overlap, work_s
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import Launch, Plan


def refusals(engines: Sequence[Engine], graph: OperationGraph, arch: ArchSpec) -> str:
    """The reasons why none of ``engines`` takes ``graph``, or an empty string if one does."""
    bounded = graph.derive(_bounded, tuple(engines), arch)
    if None in (graph.derive(engine.refuse, arch) for _, engine in bounded):
        return ""
    return "; ".join(str(graph.derive(engine.refuse, arch)) for engine in engines)


def fastest_plan(engines: Sequence[Engine], graph: OperationGraph, arch: ArchSpec) -> Plan:
    """The fastest plan for ``graph`` with default knobs; at least one of ``engines`` must take it."""
    return graph.derive(_fastest, tuple(engines), arch)


def _fastest(graph: OperationGraph, engines: tuple[Engine, ...], arch: ArchSpec) -> Plan:
    best, best_s = None, inf
    bounded = graph.derive(_bounded, engines, arch)
    waiting = [(least_s, number, engine) for number, (least_s, engine) in enumerate(bounded)]
    while waiting:
        least_s, number, engine = waiting.pop(0)
        if least_s >= best_s or graph.derive(engine.refuse, arch) is not None:
            continue
        near_s = _near_s(engine, graph, arch)
        if near_s > least_s and waiting and (near_s, number) > waiting[0][:2]:
            insort(waiting, (near_s, number, engine), key=itemgetter(0, 1))
            continue
        plan = engine.plan(graph, arch, {})
        best, best_s = min((best, best_s), (plan, _time_s(plan, arch)), key=itemgetter(1))
    assert best is not None, "one of the engines takes the graph"
    return best


def _bounded(graph: OperationGraph, engines: tuple[Engine, ...], arch: ArchSpec) -> list[tuple[float, Engine]]:
    """Each engine with a lower bound of the estimated seconds of its plans, the lowest first."""
    return sorted(((_least_s(engine, graph, arch), engine) for engine in engines), key=itemgetter(0))


def _least_s(engine: Engine, graph: OperationGraph, arch: ArchSpec) -> float:
    floor = floor_of(engine, graph)
    return floor.launches * launch_s(arch, 0.0) + overlap(*least_time(graph, floor, arch), NOTHING_EXPOSED)


def _near_s(engine: Engine, graph: OperationGraph, arch: ArchSpec) -> float:
    """A lower bound of the seconds of an engine that takes the graph, by its own model; 0 if it has none."""
    if not isinstance(engine, Modelled):
        return 0.0
    return launch_s(arch, graph.derive(engine.busy_launch, arch).work.busy_s)


def _time_s(plan: Plan, arch: ArchSpec) -> float:
    """The seconds of a plan's launches: those that their engine expects, otherwise an upper estimate."""
    return sum(launch_s(arch, _busy_s(item, arch)) for item in plan.launches)


def _busy_s(launch: Launch, arch: ArchSpec) -> float:
    """Seconds of a launch. An engine may expect no arithmetic, which a lower bound adds."""
    if not launch.work.busy_s:
        return busy_time_s(launch, arch)
    return max(launch.work.busy_s, work_s(launch.work, arch, NOTHING_EXPOSED))
