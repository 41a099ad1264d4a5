"""Objects that are pickled and copied, and objects that refuse it."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import pytest

import lowdnn
import lowdnn.enums
from lowdnn import frontend
from lowdnn.arch.specs import SM_90A
from lowdnn.backend.handle import Handle
from lowdnn.driver.emulated.faults import EmulationFault, FaultKind, FaultReport
from lowdnn.engines.base import Refusal
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace import Workspace
from tests.support.random_graphs.steps import random_graph
from tests.support.runtime import scale_plan

OWNERS: dict[str, Callable[[Handle], object]] = {
    "buffer": lambda handle: DeviceBuffer.allocate(handle.runtime.context, 64),
    "borrowed buffer": lambda handle: DeviceBuffer(handle.runtime.context, 256, 64),
    "stream": lambda handle: Stream.create(handle.runtime.context),
    "event": lambda handle: Event.create(handle.runtime.context),
    "workspace": lambda handle: Workspace(handle.runtime.context, 64),
    "workspace pool": lambda handle: lowdnn.WorkspacePool(handle),
    "plan cache": lambda handle: handle.plan_cache,
    "tensor": lambda handle: lowdnn.from_numpy(np.ones(4, np.float32), handle),
    "handle": lambda handle: handle,
    "runtime": lambda handle: handle.runtime,
    "context": lambda handle: handle.runtime.context,
    "modules": lambda handle: handle.runtime.modules,
    "list of owners": lambda handle: [DeviceBuffer.allocate(handle.runtime.context, 64)],
}


@pytest.mark.parametrize("make", OWNERS.values(), ids=OWNERS)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_owners_are_neither_copied_nor_pickled(
    handle: Handle, make: Callable[[Handle], object], duplicate: Callable[[object], object]
) -> None:
    owner = make(handle)
    if isinstance(owner, list) and duplicate is copy.copy:
        return
    with pytest.raises(TypeError, match="expected an object that may be copied or pickled"):
        duplicate(owner)


def test_a_refused_copy_frees_nothing(handle: Handle) -> None:
    tensor = lowdnn.from_numpy(np.arange(4, dtype=np.float32), handle)
    with pytest.raises(TypeError):
        copy.copy(tensor.buffer)
    gc.collect()
    np.testing.assert_array_equal(tensor.numpy(), np.arange(4))


def all_enums() -> list[Any]:
    modules = (lowdnn.enums, frontend)
    kinds = [kind for module in modules for kind in vars(module).values()]
    return [member for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum) for member in kind]


def test_values_survive() -> None:
    report = FaultReport(FaultKind.DEADLOCK, "waits", block=(1, 2, 3))
    for value in (scale_plan(300), Refusal("engine", "reason"), report, *all_enums()):
        for found in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            assert found == value
            assert type(found) is type(value)
    graphs = [random_graph(seed).graph for seed in range(8)]
    for graph in graphs:
        best = rank(graph, SM_90A, HeurMode.A, ENGINES).best
        for other in (pickle.loads(pickle.dumps(graph)), OperationGraph.from_json(graph.to_json())):
            assert other == graph
            assert hash(other) == hash(graph)
            assert other.key == graph.key
            found = rank(other, SM_90A, HeurMode.A, ENGINES).best
            assert (found and found.plan) == (best and best.plan)
    assert len(set(graphs)) == len(graphs)
    fault = pickle.loads(pickle.dumps(EmulationFault(report)))
    assert (fault.report, str(fault)) == (report, str(report))
