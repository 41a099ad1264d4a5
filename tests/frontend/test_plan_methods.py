"""The plan list by index: what it holds, which plan is taken, filters that can be chained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError
from tests.frontend.test_python_graph import FALLBACK, A, MatmulBias

ALL = cudnn.build_plan_policy.ALL


@dataclass
class Context:
    handle: Handle | None


def planned(handle: Handle | None, **options: object) -> MatmulBias:
    case = MatmulBias(handle, **options)
    case.graph.build_operation_graph()
    case.graph.create_execution_plans([A, FALLBACK])
    assert case.graph.get_execution_plan_count() > 1
    return case


def run(case: MatmulBias, handle: Handle) -> None:
    workspace = lowdnn.from_numpy(np.zeros(max(case.graph.get_workspace_size(), 1), np.uint8), handle)
    case.check(handle, lambda values: case.graph.execute(values, workspace))


def test_plans_are_what_makes_them_again(handle: Handle) -> None:
    graph = planned(handle).graph
    assert graph.backend_plan_entries() == graph.plans
    assert graph.selected_engine is None
    count = graph.get_execution_plan_count()
    chosen = graph.plans[1]
    assert graph.create_execution_plan(chosen.engine_id, chosen.knobs) is graph
    assert graph.get_plan_name_at_index(count) == graph.get_plan_name_at_index(1)
    graph.create_execution_plan(chosen.engine_id)
    assert graph.get_execution_plan_count() == count + 2
    assert pygraph(sm_version=90).plans == []


@pytest.mark.parametrize("policy", cudnn.build_plan_policy)
def test_a_pinned_plan_is_the_one_that_runs(handle: Handle, policy: cudnn.build_plan_policy) -> None:
    case = planned(handle)
    graph = case.graph
    last = graph.get_execution_plan_count() - 1
    assert graph.select_plan(last) is graph
    assert graph._selected().plan.name == graph.get_plan_name_at_index(last)
    graph.build_plans(policy)
    assert graph._selected().plan.name == graph.get_plan_name_at_index(last)
    assert graph.get_workspace_size() == graph.get_workspace_size_plan_at_index(last)
    run(case, handle)
    assert graph._plans.pinned.prepared is graph._prepared  # type: ignore[union-attr]
    built = sum(entry.prepared is not None for entry in graph._plans.entries)  # type: ignore[union-attr]
    assert built == 1 if policy is not ALL else built > 1
    graph.select_plan(0).build()
    assert graph._selected().plan.name == graph.get_plan_name_at_index(0)
    run(case, handle)


def test_pinned_and_deselected(handle: Handle) -> None:
    graph = planned(handle).graph
    name = graph.get_plan_name_at_index(1)
    graph.select_plan(1)
    assert graph.deselect_engines([name]).deselect_workspace_greater_than(2**40) is graph
    with pytest.raises(BadParamError, match="plan 1: expected a plan not deselected"):
        graph.build_plans()
    with pytest.raises(BadParamError, match="plan 1: expected a plan not deselected"):
        graph.select_plan(1)
    with pytest.raises(OutOfBoundError, match="plan index: expected 0 to"):
        graph.select_plan(1000)


def test_filters_return_the_graph(handle: Handle) -> None:
    graph = planned(handle).graph
    nondeterministic = cudnn.numerical_note.NONDETERMINISTIC
    assert graph.deselect_numeric_notes([nondeterministic]).deselect_behavior_notes([]) is graph
    assert graph.select_numeric_notes([]).select_behavior_notes([]) is graph
    assert graph.build_plan_at_index(0) is graph


def test_a_context_has_the_handle(handle: Handle) -> None:
    for build in (lambda g: g.build(ctx=Context(handle)), lambda g: g.build([A], Context(handle))):
        case = MatmulBias(None)
        build(case.graph)
        assert case.graph.handle is handle
        run(case, handle)
    case = planned(None, sm_version=90)
    with pytest.raises(AttributeTypeError, match=r"build\.ctx: expected None or what has a handle"):
        case.graph.build_plans(ctx=Context(None))


def test_documents_in_the_forms_of_cudnn_frontend(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build()
    data = case.graph.serialize(as_bytes=True, include_kernels=False)
    assert data == case.graph.serialize(as_bytes=True)
    assert isinstance(data, bytes)
    for give in (
        lambda g: g.deserialize(handle, list(data)),
        lambda g: g.deserialize(handle_=handle, pyobj=data),
        lambda g: g.deserialize(handle, pyobj=data, enforce_precompiled=False),
    ):
        graph = pygraph(handle=handle)
        give(graph)
        assert [tensor.get_name() for tensor in graph.get_outputs()] == ["y"]
    with pytest.raises(BadParamError, match="expected text, bytes, or values of bytes"):
        pygraph(handle=handle).deserialize(handle, [300])
    with pytest.raises(BadParamError, match=r"expected \(handle, data\) or \(data\)"):
        pygraph(handle=handle).deserialize()
