"""The cut that a search over intervals finds, beside all cuts of small graphs."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise, product

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.engines.base import Engine, LastResort
from lowdnn.engines.composite.orders import orders_of
from lowdnn.engines.composite.partition import Uncovered, partition
from lowdnn.engines.composite.parts import Cost, PartPlanner
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.engines.registry import ENGINES
from lowdnn.graph.graph import OperationGraph
from tests.support.data import fresh_seed
from tests.support.random_graphs.steps import random_graph

#: Operations of a graph; an order of n has 2^(n - 1) cuts.
MOST_OPERATIONS = 7


def costs_of_all_cuts(graph: OperationGraph, arch: ArchSpec) -> list[Cost]:
    planner, engines = PartPlanner(graph, arch), _engines()
    costs: list[Cost] = []
    for order in orders_of(graph):
        for ends in product((False, True), repeat=len(order) - 1):
            places = [0, *(place for place, is_end in enumerate(ends, 1) if is_end), len(order)]
            parts = [planner.part(order[begin:end], engines) for begin, end in pairwise(places)]
            known = [part.cost for part in parts if part is not None]
            if len(known) == len(parts):
                costs.append(reduce(Cost.plus, known))
    return costs


@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_no_cut_has_less_time_by_the_estimate_that_ranks_plans(arch: ArchSpec) -> None:
    """So the bounds by which intervals are passed over are above no plan's time."""
    seed, tried = fresh_seed(), 0
    while tried < 12:
        graph, seed = random_graph(seed).graph, seed + 1
        if not 2 <= len(graph.operations) <= MOST_OPERATIONS:
            continue
        found = partition(graph, arch, _engines())
        if isinstance(found, Uncovered):
            continue
        tried += 1
        costs = costs_of_all_cuts(graph, arch)
        chosen = reduce(Cost.plus, (part.cost for part in found))
        assert chosen == min(costs), f"seed {seed - 1}"
        assert chosen.time_ps == pytest.approx(1e6 * sum(plan_us(part.plan, arch) for part in found))


def _engines() -> tuple[Engine, ...]:
    return tuple(engine for engine in ENGINES if not isinstance(engine, LastResort))
