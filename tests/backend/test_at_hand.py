"""Descriptors, classic calls and recurrent networks under a handle's compile policy."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from lowdnn.backend import Handle
from lowdnn.backend.engine_descriptors import EngineHeuristics
from lowdnn.backend.graph_descriptors import GraphDescription
from lowdnn.backend.plan_descriptors import ExecutionPlan
from lowdnn.capi.graphs import Planned
from lowdnn.capi.state import State
from lowdnn.cases import parse_case
from lowdnn.config import CompilePolicy, Config
from lowdnn.enums import HeurMode
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.switching_plan import SwitchingPlan
from lowdnn.runtime.workspace import size_anywhere
from tests.support.data import fresh_seed
from tests.support.runtime import download, upload

#: The best plan has one kernel and needs no workspace.
MANY = "matmul b=1 m=256 n=64 k=2048 dtype=fp16 out=fp32"
#: The best plan splits the sum, with parts in the workspace.
FEW = "matmul b=1 m=40 n=64 k=2048 dtype=fp16 out=fp32"


def opened(device: Runtime, folder: Path, policy: CompilePolicy) -> Handle:
    return Handle(Runtime(device.driver, config=Config(cache_dir=folder, compile_policy=policy)))


def finalized(handle: Handle, text: str) -> ExecutionPlan:
    """The execution plan of the first configuration that the heuristics list."""
    description = GraphDescription(parse_case(text).graph().operations, handle)
    return ExecutionPlan(EngineHeuristics(HeurMode.A, description).results()[0])


def counted(handle: Handle, name: str) -> int:
    return handle.runtime.counters.snapshot().get(name, 0)


def test_the_first_configuration_can_run_at_once(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.AVOID) as handle:
        finalized(handle, MANY).loaded_for(handle)
        description = GraphDescription(parse_case(FEW).graph().operations, handle)
        first, second, *_ = EngineHeuristics(HeurMode.A, description).results()
        best = handle.rank(parse_case(FEW).graph(), HeurMode.A).best
        assert best is not None
        assert second.candidate.plan == best.plan != first.candidate.plan
        assert first.workspace_size() == 0
        before = counted(handle, "compiles")
        ExecutionPlan(first).loaded_for(handle)
        assert counted(handle, "compiles") == before


def test_an_execution_plan_switches_and_asks_for_the_workspace_of_both(device: Runtime, tmp_path: Path) -> None:
    with opened(device, tmp_path, CompilePolicy.BACKGROUND) as handle:
        finalized(handle, MANY).loaded_for(handle)
        description = finalized(handle, FEW)
        best = handle.rank(parse_case(FEW).graph(), HeurMode.A).best
        assert best is not None
        assert description.workspace_size() == size_anywhere(best.plan.workspace_bytes) > 0
        random = np.random.default_rng(fresh_seed())
        a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((40, 2048), (2048, 64)))
        y = np.full((40, 64), np.nan, np.float32)
        buffers = [upload(handle.runtime, array) for array in (a, b, y)]
        workspace = upload(handle.runtime, np.zeros(description.workspace_size(), np.uint8))
        loaded = description.loaded_for(handle)
        assert isinstance(loaded, SwitchingPlan)
        for is_ready in (False, True, True):
            if is_ready:
                wait_for(loaded)
            buffers[2].copy_from_host(y)
            loaded.execute(tuple(buffer.address for buffer in buffers), workspace.address, handle.stream)
            handle.synchronize()
            found = download(buffers[2], np.float32).reshape(40, 64)
            np.testing.assert_array_equal(found, a.astype(np.float32) @ b.astype(np.float32))
        assert loaded.has_switched
        assert counted(handle, "algorithm_switches") == 1


def wait_for(loaded: SwitchingPlan) -> None:
    end_s = time.monotonic() + 60
    while not (loaded.has_switched or loaded._task.is_done):
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_handles_of_the_c_library_follow_the_environment(
    device: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A classic call keeps the plan that it was first told of; what is compiled meanwhile serves later ones."""
    monkeypatch.setenv("LOWDNN_COMPILE", "background")
    monkeypatch.setenv("LOWDNN_CACHE_DIR", str(tmp_path))
    state = State(device.driver)
    handle = state.open_handle()
    assert handle.runtime.config.compile_policy is CompilePolicy.BACKGROUND
    many, few = (Planned(handle, parse_case(text).graph().operations, HeurMode.A) for text in (MANY, FEW))
    many.loaded(handle, 0, "here")
    candidate = few.candidate(0, "here")
    assert candidate.plan != few.candidates[0].plan
    assert candidate.better is None
    assert few.candidate(0, "here") is candidate
    end_s = time.monotonic() + 60
    while not handle.runtime.modules.are_at_hand(few.candidates[0].plan.kernels):
        assert time.monotonic() < end_s
        time.sleep(0.001)
    again = Planned(handle, parse_case(FEW).graph().operations, HeurMode.A)
    assert again.candidate(0, "here").plan == few.candidates[0].plan
    state.close_handle(handle)
