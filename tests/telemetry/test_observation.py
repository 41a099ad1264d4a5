"""Counts and events of the library reach the measures: plans, caches, compiles, errors, switches, fallbacks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lowdnn
from lowdnn import observer, telemetry
from lowdnn.backend.at_hand import load
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.config import Config
from lowdnn.driver.base import DriverError, emitted
from lowdnn.driver.results import CuResult
from lowdnn.enums import HeurMode
from lowdnn.events import Counters
from lowdnn.frontend import data_type, pygraph
from lowdnn.heuristics.stored_plans import Reading, read_plan, write_plan
from lowdnn.runtime.context import Context
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import DeviceAllocationFailedError, GraphPatternError, LowdnnError, SizeInsufficientError
from lowdnn.telemetry import Measure, measures
from tests.telemetry.conftest import value_of


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[Handle]:
    with telemetry.enable(sample=1.0), Handle.open("emulated", config=_config(tmp_path)) as found:
        yield found


def _config(folder: Path) -> Config:
    return Config(cache_dir=folder / "cache", tuning_path=())


def relu(handle: Handle, size: int = 64) -> pygraph:
    graph = pygraph("relu", data_type.FLOAT, data_type.FLOAT, data_type.FLOAT, handle)
    x = graph.tensor([size], name="x")
    graph.relu(x).set_output(True).set_name("y")
    return graph


def test_a_graph_is_counted_from_plan_to_kernel(handle: Handle, tmp_path: Path) -> None:
    for _ in range(3):
        relu(handle).run(x=np.ones(64, np.float32))
    (engine,) = (loaded.plan.engine for loaded in handle.plan_cache._loaded.values())
    assert value_of(measures.EXECUTES, "pointwise", engine) == 3
    assert value_of(measures.KERNEL_SECONDS, "pointwise", engine) == 3
    assert value_of(measures.PLANS, "heuristic") == 3
    assert value_of(measures.CACHE_HITS, "plan") == 2
    assert value_of(measures.CACHE_MISSES, "plan") == 1
    assert value_of(measures.MODULE_LOADS) == 1
    assert value_of(measures.CACHE_HITS, "module") + value_of(measures.CACHE_MISSES, "module") == 1
    assert value_of(measures.MODULE_BYTES) > 100
    assert not any(family.measure is measures.ALGORITHM_SWITCHES for family in telemetry.collect())
    assert value_of(measures.FREE_BYTES, "emulated:0") < value_of(measures.TOTAL_BYTES, "emulated:0")


def test_a_kernel_is_compiled_once_and_then_found_on_disk(handle: Handle, tmp_path: Path) -> None:
    best = handle.rank(parse_case("matmul m=5 n=6 k=7 epilogue=relu").graph(), HeurMode.A).best
    assert best is not None
    handle.load_candidate(best)
    compiles = value_of(measures.COMPILES)
    assert compiles == value_of(measures.CACHE_MISSES, "disk") == 1
    assert value_of(measures.COMPILE_SECONDS) > 0
    with Handle.open("emulated", config=_config(tmp_path)) as second:
        second.load_candidate(best)
    assert value_of(measures.COMPILES) == compiles
    assert value_of(measures.CACHE_HITS, "disk") == 1


def test_a_stored_plan_is_one_of_a_document(handle: Handle) -> None:
    best = handle.rank(parse_case("matmul m=5 n=6 k=7").graph(), HeurMode.A).best
    assert best is not None
    again = read_plan(write_plan(best), Reading(handle.engines, handle.arch), "plan")
    handle.load_candidate(again)
    assert value_of(measures.PLANS, "document") == 1
    assert value_of(measures.PLANS, "heuristic") == 0


def test_a_split_graph_is_a_fallback(handle: Handle) -> None:
    graph = pygraph("chain", data_type.FLOAT, data_type.FLOAT, data_type.FLOAT, handle)
    x, y = graph.tensor([4, 16, 8], name="x"), graph.tensor([4, 8, 16], name="y")
    graph.matmul(graph.matmul(x, y), graph.tensor([4, 16, 4], name="z")).set_output(True)
    graph.build()
    assert graph.get_plan_name_at_index(0).partition("_")[2].startswith("composite")
    assert value_of(measures.FALLBACKS, "composite") == 1


def test_another_plan_of_a_graph_is_a_switch(handle: Handle) -> None:
    case = "matmul m=64 n=64 k=64 dtype=fp16"
    first, second = handle.rank(parse_case(case).graph(), HeurMode.A).candidates[:2]
    for plan in (first.plan, first.plan, second.plan):
        fields = {"graph": "g", "plan": plan.name, "operation": "matmul", "engine": plan.engine, "key": plan.graph_key}
        observer.happened("plan_selected", fields)
    assert value_of(measures.ALGORITHM_SWITCHES, "matmul", first.plan.engine, second.plan.engine) == 1


def test_building_a_graph_again_with_another_plan_is_a_switch(handle: Handle) -> None:
    for engine in (None, 1):
        graph = pygraph("matmul", data_type.HALF, data_type.FLOAT, data_type.FLOAT, handle)
        graph.matmul(graph.tensor([1, 64, 64]), graph.tensor([1, 64, 64])).set_output(True)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans()
        if engine is not None:
            graph.deselect_engines([graph.get_plan_name_at_index(0).partition("_")[0]])
        graph.build_plans()
    (family,) = [one for one in telemetry.collect() if one.measure is measures.ALGORITHM_SWITCHES]
    (sample,) = family.samples
    assert sample.labels[0] == "matmul"
    assert sample.value == 1


@pytest.mark.parametrize(
    ("name", "measure", "labels"),
    [
        ("plans_at_hand", measures.FALLBACKS, ("cache",)),
        ("hangs", measures.HANGS, ()),
        ("bundle_hits", measures.CACHE_HITS, ("module",)),
    ],
)
def test_counts_of_the_library_are_measures(
    handle: Handle, name: str, measure: Measure, labels: tuple[str, ...]
) -> None:
    handle.runtime.counters.add(name, 3)
    handle.runtime.counters.add("keys_passed_over")
    assert value_of(measure, *labels) == 3


def test_a_switch_to_the_better_plan_is_counted(handle: Handle) -> None:
    fields = {
        "operation": "matmul",
        "graph": "key",
        "from": "eng1_a",
        "to": "eng2_b",
        "from_engine": "a",
        "to_engine": "b",
    }
    observer.happened("algorithm_switch", fields)
    assert value_of(measures.ALGORITHM_SWITCHES, "matmul", "a", "b") == 1


@pytest.mark.parametrize(
    ("result", "kind", "is_lack"),
    [
        (CuResult.OUT_OF_MEMORY, "other", True),
        (CuResult.ILLEGAL_ADDRESS, "sticky", False),
        (CuResult.ECC_UNCORRECTABLE, "sticky", False),
        (CuResult.INVALID_VALUE, "other", False),
    ],
)
def test_errors_of_the_driver_are_told_apart(handle: Handle, result: CuResult, kind: str, is_lack: bool) -> None:
    emitted(DriverError("cuCall", int(result), result.c_name))
    assert value_of(measures.DRIVER_ERRORS, kind) == 1
    assert value_of(measures.OUT_OF_MEMORY) == is_lack


def test_memory_that_is_not_there_is_counted(handle: Handle) -> None:
    with pytest.raises(DeviceAllocationFailedError):
        Workspace(handle.runtime.context, 1 << 50)
    assert value_of(measures.OUT_OF_MEMORY) == 1


def test_workspaces_that_are_too_small_are_counted(handle: Handle) -> None:
    graph = pygraph("chain", data_type.FLOAT, data_type.FLOAT, data_type.FLOAT, handle)
    x, y, z = graph.tensor([4, 16, 8]), graph.tensor([4, 8, 16]), graph.tensor([4, 16, 4])
    out = graph.matmul(graph.matmul(x, y), z).set_output(True)
    graph.build()
    values = {tensor: lowdnn.zeros(tensor.get_dim(), handle, data_type.FLOAT) for tensor in (x, y, z, out)}
    with pytest.raises(SizeInsufficientError):
        graph.execute(values, lowdnn.zeros((16,), handle, data_type.UINT8))
    assert value_of(measures.WORKSPACE_FAILURES) == 1
    with lowdnn.WorkspacePool(handle, limit_bytes=64) as pool, pytest.raises(SizeInsufficientError):
        graph.execute(values, pool)
    assert value_of(measures.WORKSPACE_FAILURES) == 2
    with pytest.raises(LowdnnError):
        graph.execute(values, None)
    assert value_of(measures.WORKSPACE_FAILURES) == 3
    assert value_of(measures.REFUSALS, SizeInsufficientError.status.name) == 2
    with lowdnn.WorkspacePool(handle) as pool:
        graph.execute(values, pool)
        assert value_of(measures.WORKSPACE_BYTES) == pool.statistics().size_bytes > 0
    with Workspace(handle.runtime.context, 5000):
        assert value_of(measures.WORKSPACE_BYTES) == 5000
    assert value_of(measures.WORKSPACE_BYTES) == 0


def test_graphs_that_no_engine_runs_are_refusals(handle: Handle) -> None:
    graph = relu(handle)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans()
    graph.deselect_workspace_greater_than(0)
    graph.deselect_engines([f"eng{place}" for place in range(2000)])
    with pytest.raises(GraphPatternError):
        graph.check_support()
    assert value_of(measures.REFUSALS, "NOT_SUPPORTED_GRAPH_PATTERN") == 1


def test_calls_of_torch_that_ran_natively_are_fallbacks(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [SimpleNamespace(calls=3, reason="dtype"), SimpleNamespace(calls=50, reason="")]
    monkeypatch.setitem(sys.modules, "lowdnn.torch", SimpleNamespace(counts=lambda: paths))
    assert value_of(measures.FALLBACKS, "torch") == 3
    paths[0].calls = 5
    assert value_of(measures.FALLBACKS, "torch") == 5
    paths[0].calls = 1  # the counts have begun anew
    assert value_of(measures.FALLBACKS, "torch") == 6


def test_a_profiler_range_has_the_line_that_repeats_the_execute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, bytes]] = []
    fake = SimpleNamespace(annotate=lambda **options: opened.append(options) or nullcontext())
    monkeypatch.setitem(sys.modules, "nvtx", fake)  # type: ignore[arg-type]
    with Handle.open("emulated", config=replace(_config(tmp_path), nvtx=True)) as handle:
        relu(handle).run(x=np.ones(64, np.float32))
    (one,) = opened
    assert one["payload"].startswith(b"lowdnn run --check --device emulated")


def test_an_observer_that_fails_hurts_nobody(handle: Handle, caplog: pytest.LogCaptureFixture) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("out of order")

    observer.observe(SimpleNamespace(happened=failing, counted=failing, met=failing))
    Counters().add("compiles")
    observer.introduce(Context(handle.runtime.driver))
    relu(handle, 32).run(x=np.ones(32, np.float32))
    assert caplog.text.count("out of order") >= 3


def test_without_telemetry_nothing_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="lowdnn")
    with Handle.open("emulated", config=_config(tmp_path)) as handle:
        best = handle.rank(parse_case("matmul m=5 n=6 k=7").graph(), HeurMode.A).best
        assert best is not None
        load(handle, best)
    assert telemetry.collect() == ()
    assert "plan_taken" in caplog.text
