"""Plans that cannot be built: which failures let the next plan have its turn, and which are the caller's to hear."""

from __future__ import annotations

import logging

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.driver.base import DriverError, DriverMemoryError
from lowdnn.driver.nvrtc import compile_program
from lowdnn.frontend.enums import heur_mode
from lowdnn.frontend.handles import create_handle
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import CompilationFailedError, HostAllocationFailedError, LowdnnError
from tests.frontend.test_python_graph import MatmulBias

MODES = [heur_mode.A, heur_mode.FALLBACK]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def selected(case: MatmulBias) -> str:
    """The plan that the graph has built."""
    return case.graph._selected().plan.name


def first_choice(device_kind: str) -> str:
    with create_handle(device_kind) as handle:
        case = MatmulBias(handle)
        case.graph.build(MODES)
        return selected(case)


@pytest.mark.parametrize("result", ["UNKNOWN", "OUT_OF_MEMORY", "LAUNCH_FAILED", "NOT_PERMITTED"])
@pytest.mark.parametrize("call", ["module_load_data", "module_get_function", "prepare_launch"])
def test_a_transient_failure_is_raised_and_costs_no_engine(device_kind: str, call: str, result: str) -> None:
    wanted = first_choice(device_kind)
    with create_handle(device_kind, faults=f"{call}:1={result}") as handle:
        case = MatmulBias(handle)
        with pytest.raises(DriverError, match=f"CUDA_ERROR_{result}") as caught:
            case.graph.build(MODES)
        assert isinstance(caught.value, DriverMemoryError) == (result == "OUT_OF_MEMORY")
        case.graph.build_plans()
        assert selected(case) == wanted
        case.check(handle, lambda values: case.graph.execute(values))


def check_passed_over(handle: Handle, device_kind: str, caplog: pytest.LogCaptureFixture) -> None:
    case = MatmulBias(handle)
    with caplog.at_level(logging.WARNING, logger="lowdnn"):
        case.graph.build(MODES)
    events = [record.getMessage() for record in caplog.records]
    skipped = [event for event in events if event.startswith("plan_skipped")]
    assert len(skipped) == 1
    assert f'plan="{first_choice(device_kind)}"' in skipped[0]
    assert selected(case) != first_choice(device_kind)
    with Workspace(handle.runtime.context, case.graph.get_workspace_size()) as workspace:
        case.check(handle, lambda values: case.graph.execute(values, workspace.address))


def test_an_image_that_the_driver_cannot_run_lets_the_next_plan_go(
    device_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    # A refused entry of the disk cache is compiled anew and loaded once more.
    with create_handle(device_kind, faults="module_load_data:1-2=NO_BINARY_FOR_GPU") as handle:
        check_passed_over(handle, device_kind, caplog)


def test_a_failed_compilation_lets_the_next_plan_go(
    device_kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_handle(device_kind) as handle:
        load, calls = handle.runtime.modules.load, iter([CompilationFailedError("NVRTC rejected the program")])

        def fails_once(*arguments: object) -> None:
            for error in calls:
                raise error
            load(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(handle.runtime.modules, "load", fails_once)
        check_passed_over(handle, device_kind, caplog)


@pytest.mark.parametrize("error", [MemoryError(), HostAllocationFailedError("no memory"), KeyError("a defect")])
def test_what_is_no_property_of_the_plan_is_raised(
    device_kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    with create_handle(device_kind) as handle:
        case = MatmulBias(handle)
        with monkeypatch.context() as patch:
            patch.setattr(handle.runtime.modules, "load", fails)
            with pytest.raises(type(error)):
                case.graph.build(MODES)
        case.graph.build_plans()
        assert selected(case) == first_choice(device_kind)


def test_a_compiler_without_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc

    no_memory = nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY
    monkeypatch.setattr(nvrtc, "nvrtcCreateProgram", lambda *_: (no_memory, None))
    with pytest.raises(MemoryError, match="NVRTC_ERROR_OUT_OF_MEMORY") as caught:
        compile_program("", name="x", headers={}, options=())
    assert isinstance(caught.value, LowdnnError)
