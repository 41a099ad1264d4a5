"""Plans that are finalized without a handle begin to compile on the device of their graph's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lowdnn.backend import Handle, execute
from lowdnn.backend.engine_descriptors import EngineHeuristics
from lowdnn.backend.gradients_ahead import gradients_of
from lowdnn.backend.graph_descriptors import GraphDescription
from lowdnn.backend.plan_descriptors import ExecutionPlan
from lowdnn.cases import parse_case
from lowdnn.config import Config
from lowdnn.enums import AttributeName, AttributeType, HeurMode
from lowdnn.frontend.enums import build_plan_policy, heur_mode
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.frontend.test_python_graph import MatmulBias
from tests.support.descriptors import A, B, Y, add_graph, best_config, device_properties, plan_of, variant_pack
from tests.support.runtime import download, upload


def until(is_true: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.001)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that handles have begun, and those that they have loaded behind them."""
    found: list[Plan] = []
    for name in ("begin", "load"):
        monkeypatch.setattr(Runtime, name, _noting(found, getattr(Runtime, name)))
    return found


def _noting(found: list[Plan], call: object) -> object:
    def noted(runtime: Runtime, plan: Plan) -> object:
        found.append(plan)
        return call(runtime, plan)  # type: ignore[operator]

    return noted


@pytest.fixture
def ahead(device: Runtime, tmp_path: Path) -> Iterator[Handle]:
    """A handle that compiles ahead, with an empty cache."""
    with Handle(Runtime(device.driver, config=Config(cache_dir=tmp_path, compile_threads=2))) as handle:
        yield handle


def test_a_finalized_plan_is_compiled_before_it_is_executed(ahead: Handle) -> None:
    plan, compiled = plan_of(best_config(add_graph(ahead))), ahead.runtime.counters.snapshot
    until(lambda: {"compiles", "store_hits"} & compiled().keys())
    before = compiled()
    one, other, result = (upload(ahead.runtime, np.full(32, value, np.float32)) for value in (1, 2, np.nan))
    execute(ahead, plan, variant_pack({A: one.address, B: other.address, Y: result.address}))
    np.testing.assert_array_equal(download(result, np.float32), 3.0)
    after = compiled()
    assert {name: after[name] for name in before if name != "plans_loaded"} == before
    assert after["modules_loaded"] == 1


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_the_gradients_of_a_convolution_are_in_the_cache_when_they_are_needed(
    device: Runtime, tmp_path: Path, dtype: str
) -> None:
    """The kernels of the plans that a program takes which took the forward plan: here the first of each."""
    text = f"conv n=2 c=64 hw=9x9 k=32 rs=3x3 pad=1 dtype={dtype}"
    config = Config(cache_dir=tmp_path, compile_threads=2, compile_gradients=True)
    with Handle(Runtime(device.driver, config=config)) as handle:
        finalized(handle, text)
        until(lambda: all(thread.name != "lowdnn ahead" for thread in threading.enumerate()))
    with Handle(Runtime(device.driver, config=Config(cache_dir=tmp_path))) as handle:
        plans = [finalized(handle, f"{text} dir={direction}") for direction in ("dgrad", "wgrad")]
        for plan in plans:
            handle.load(plan)
        assert "compiles" not in handle.runtime.counters.snapshot()


def test_gradients_are_compiled_where_it_is_asked_for(
    handle: Handle, ahead: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, and of what is not one convolution forward, none is."""
    monkeypatch.setattr(Runtime, "begin_kernels", None)
    finalized(handle, "conv n=2 c=8 hw=5x5 k=8 rs=3x3")
    finalized(ahead, "conv n=2 c=8 hw=5x5 k=8 rs=3x3")
    for text in ("conv n=2 c=8 hw=5x5 k=8 rs=3x3 dir=dgrad", "conv n=2 c=8 hw=5x5 k=8 rs=3x3 epilogue=relu"):
        assert gradients_of(parse_case(text).graph()) == ()


def finalized(handle: Handle, text: str) -> Plan:
    """The plan of a text case, finalized as a descriptor without a handle."""
    description = GraphDescription(parse_case(text).graph().operations, handle)
    config = EngineHeuristics(HeurMode.INSTANT, description).results()[0]
    return ExecutionPlan(config).plan


def test_plans_begin_where_their_graph_has_a_device(handle: Handle, begun: list[Plan]) -> None:
    """One with a handle of its own is loaded at once; one for a described device, or a closed handle, is data alone."""
    plan = plan_of(best_config(add_graph(handle)))
    assert begun == [plan.value.plan]
    on_handle = (AttributeName.EXECUTION_PLAN_HANDLE, AttributeType.HANDLE, handle)
    loaded = plan_of(best_config(add_graph(handle)), on_handle)
    assert begun[1:] == [loaded.value.plan]
    begun.clear()
    described = device_properties()
    config = best_config(
        add_graph(None), (AttributeName.ENGINEHEUR_DEVICEPROP, AttributeType.BACKEND_DESCRIPTOR, described)
    )
    plan_of(config)
    config = best_config(add_graph(handle))
    handle.close()
    plan_of(config)
    assert begun == []


def test_a_graph_that_builds_all_plans_begins_them_together(handle: Handle, begun: list[Plan]) -> None:
    case = MatmulBias(handle)
    case.graph.build_operation_graph()
    case.graph.create_execution_plans([heur_mode.A, heur_mode.FALLBACK])
    case.graph.build_plans(build_plan_policy.ALL)
    count = case.graph.get_execution_plan_count()
    assert len(begun) == 2 * count
    assert begun[:count] == begun[count:]
