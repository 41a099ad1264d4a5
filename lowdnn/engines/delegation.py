"""Plans that an engine has others make: for a graph that takes the place of the one it was given."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from math import inf
from operator import itemgetter

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.floor import Modelled, busy_time_s, floor_of, least_time
from lowdnn.engines.model.clock import NOTHING_EXPOSED, launch_s, overlap
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import Plan


def refusals(engines: Sequence[Engine], graph: OperationGraph, arch: ArchSpec) -> str:
    """Why none of ``engines`` takes ``graph``, or an empty string."""
    bounded = graph.derive(_bounded, tuple(engines), arch)
    if None in (graph.derive(engine.refuse, arch) for _, engine in bounded):
        return ""
    return "; ".join(str(graph.derive(engine.refuse, arch)) for engine in engines)


def fastest_plan(engines: Sequence[Engine], graph: OperationGraph, arch: ArchSpec) -> Plan:
    """The fastest plan for ``graph``, which one of ``engines`` takes, with default knobs."""
    best, best_s = None, inf
    bounded = graph.derive(_bounded, tuple(engines), arch)
    waiting = [(least_s, place, engine) for place, (least_s, engine) in enumerate(bounded)]
    while waiting:
        least_s, place, engine = waiting.pop(0)
        if least_s >= best_s or graph.derive(engine.refuse, arch) is not None:
            continue
        near_s = _near_s(engine, graph, arch)
        if near_s > least_s and waiting and (near_s, place) > waiting[0][:2]:
            insort(waiting, (near_s, place, engine), key=itemgetter(0, 1))
            continue
        plan = engine.plan(graph, arch, {})
        best, best_s = min((best, best_s), (plan, _time_s(plan, arch)), key=itemgetter(1))
    assert best is not None, "an engine takes what is not refused"
    return best


def _bounded(graph: OperationGraph, engines: tuple[Engine, ...], arch: ArchSpec) -> list[tuple[float, Engine]]:
    """The engines, each with a time that no plan of its is estimated to beat, lowest first."""
    return sorted(((_least_s(engine, graph, arch), engine) for engine in engines), key=itemgetter(0))


def _least_s(engine: Engine, graph: OperationGraph, arch: ArchSpec) -> float:
    floor = floor_of(engine, graph)
    return floor.launches * launch_s(arch, 0.0) + overlap(*least_time(graph, floor, arch), NOTHING_EXPOSED)


def _near_s(engine: Engine, graph: OperationGraph, arch: ArchSpec) -> float:
    """A lower bound of the seconds of an engine that takes the graph, as its model has it."""
    if not isinstance(engine, Modelled):
        return 0.0
    return launch_s(arch, graph.derive(engine.busy_launch, arch).work.busy_s)


def _time_s(plan: Plan, arch: ArchSpec) -> float:
    """The seconds of launches that their engine expects, where it does; otherwise an upper estimate."""
    return sum(launch_s(arch, item.work.busy_s or busy_time_s(item, arch)) for item in plan.launches)
