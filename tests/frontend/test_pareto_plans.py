"""``pareto_plans``, and the plan that a graph takes under a limit of workspace."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.status import BadParamError

FLOAT, HALF, UINT8 = cudnn.data_type.FLOAT, cudnn.data_type.HALF, cudnn.data_type.UINT8


def product(handle: Handle | None, k: int = 2048, **options: int) -> cudnn.pygraph:
    """c = a b with few rows and columns, whose best plan splits K."""
    graph = cudnn.pygraph("product", HALF, FLOAT, FLOAT, handle, **options)
    a, b = graph.tensor((1, 16, k), name="a"), graph.tensor((1, k, 16), name="b")
    graph.matmul(a, b).set_output(True).set_data_type(FLOAT).set_name("c")
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    return graph


def test_plans_need_less_workspace_the_slower_they_are() -> None:
    graph = product(None, sm_version=90)
    count = graph.get_execution_plan_count()
    found = graph.pareto_plans()
    assert len(found) >= 3
    assert found[0].index == 0
    assert found[-1].workspace_bytes == 0
    for faster, slower in pairwise(found):
        assert faster.estimated_us <= slower.estimated_us
        assert faster.workspace_bytes > slower.workspace_bytes
    for each in found:
        assert each.name == graph.get_plan_name_at_index(each.index)
        assert each.workspace_bytes == graph.get_workspace_size_plan_at_index(each.index)
    assert count < graph.get_execution_plan_count(), "plans in fewer parts are in the list now"
    assert graph.pareto_plans() == found
    graph.deselect_workspace_greater_than(found[1].workspace_bytes)
    assert graph.pareto_plans() == found[1:]
    with pytest.raises(BadParamError, match="build_operation_graph first"):
        cudnn.pygraph().pareto_plans()


def test_limit_leaves_the_best_plan_that_fits(handle: Handle) -> None:
    """K is split into fewer parts, and results are right; the plan without a split would take twice as long."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((1, 16, 2048), (1, 2048, 16)))
    values = {"a": lowdnn.from_numpy(a, handle, HALF), "b": lowdnn.from_numpy(b, handle, HALF)}
    best = product(handle)
    best.build_plans()
    whole_bytes = best.get_workspace_size()
    for limit in (whole_bytes, whole_bytes - 1, whole_bytes // 2, 0):
        graph = product(handle)
        graph.deselect_workspace_greater_than(limit)
        expected = graph.pareto_plans()[0]
        before = graph.get_workspace_size()
        graph.build_plans()
        assert graph.get_workspace_size() == before == expected.workspace_bytes <= limit
        assert graph.plan.name == expected.name
        assert (graph.plan == best.plan) == (limit == whole_bytes)
        assert (graph.get_workspace_size() > 0) == (limit > 0)
        assert f"> {graph.plan.engine}" in graph.explain()
        c = lowdnn.zeros((1, 16, 16), handle)
        graph.execute({**values, "c": c}, lowdnn.empty((graph.get_workspace_size(),), handle, UINT8))
        np.testing.assert_array_equal(c.numpy(), a @ b)


def test_a_plan_of_the_frontier_is_selected_by_its_index(handle: Handle) -> None:
    graph = product(handle)
    middle = graph.pareto_plans()[1]
    graph.select_plan(middle.index)
    graph.build()
    assert graph.plan.name == middle.name
    assert graph.get_workspace_size() == middle.workspace_bytes
