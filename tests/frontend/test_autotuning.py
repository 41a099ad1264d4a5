"""``pygraph.autotune``: on a GPU by its clock, on the emulated device by the cost model's estimates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.backend.handle import Handle
from lowdnn.config import Config
from lowdnn.enums import KnobType
from lowdnn.frontend import data_type
from lowdnn.frontend.enums import heur_mode, knob_type
from lowdnn.frontend.python_graph import pygraph
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.heuristics.tuning.tuner import TuningOptions
from lowdnn.status import BadParamError, NotSupportedError


@pytest.fixture
def handle(tmp_path: Path, kernel_cache_dir: Path) -> Iterator[Handle]:
    config = Config(tuning_path=(tmp_path,), cache_dir=kernel_cache_dir)
    with Handle.open("emulated", config=config) as opened:
        yield opened


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def on_device(request: pytest.FixtureRequest, tmp_path: Path, kernel_cache_dir: Path) -> Iterator[Handle]:
    with Handle.open(request.param, config=Config(tuning_path=(tmp_path,), cache_dir=kernel_cache_dir)) as opened:
        yield opened


def product(handle: Handle | None, size: int = 64, **arguments: object) -> pygraph:
    graph = pygraph(io_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT, handle=handle, **arguments)
    a, b = (graph.tensor((1, size, size), name=name) for name in "ab")
    c = graph.matmul(a, b, name="product")
    c.set_name("c").set_output(True)
    return graph


def test_execute_runs_the_tuned_plan_and_other_graphs_follow_its_record(on_device: Handle) -> None:
    graph = product(on_device)
    tuned = graph.autotune(processes=2)
    assert tuned.record.us <= tuned.record.first_us
    assert "the first choice" in str(tuned)
    a, b = (np.random.default_rng(0).standard_normal((1, 64, 64)).astype(np.float32) for _ in "ab")
    found = graph.run(a=a, b=b)["c"].numpy()
    np.testing.assert_allclose(found, a @ b, rtol=0.02, atol=0.05)
    assert graph.get_plan_name_at_index(0) == tuned.candidate.plan.name
    other = product(on_device)
    other.build([heur_mode.A])
    assert other.get_plan_name_at_index(0) == tuned.candidate.plan.name


def test_a_choice_among_some_is_for_this_graph_alone(handle: Handle) -> None:
    graph = product(handle)
    tuned = graph.autotune(engines=["matmul_simt"], knobs={knob_type.TILE_M: 64, knob_type.TILE_N: [32, 64]})
    assert tuned.candidate.engine.name == "matmul_simt"
    assert {dict(trial.candidate.plan.choices)[KnobType.TILE_M] for trial in tuned.trials} == {64}
    other = product(handle)
    other.build([heur_mode.A])
    assert "simt" not in other.get_plan_name_at_index(0)


def test_plans_that_are_deselected_are_not_tried(handle: Handle) -> None:
    graph = product(handle)
    graph.build_operation_graph()
    graph.deselect_engines(["matmul_mma", "eng2"])
    assert all(trial.candidate.engine.name != "matmul_mma" for trial in graph.autotune().trials)


def test_a_workspace_limit_is_kept(handle: Handle) -> None:
    graph = product(handle, 1024)
    tuned = graph.autotune(workspace_limit=0)
    assert all(trial.candidate.plan.workspace_bytes == 0 for trial in tuned.trials)
    assert tuned.record.workspace_limit == 0


def test_given_inputs_stay_as_they_are(on_device: Handle) -> None:
    graph = product(on_device)
    numbers = np.random.default_rng(0).standard_normal((1, 64, 64)).astype(np.float32)
    with lowdnn.from_numpy(numbers, on_device) as a:
        graph.autotune({"a": a}, engines=["matmul_simt"])
        np.testing.assert_array_equal(a.numpy(), numbers)


def test_inputs_are_checked_as_for_execute(handle: Handle) -> None:
    graph = product(handle)
    with pytest.raises(BadParamError, match=r"autotune.tensor_dict: expected tensors of the graph.*no 'A', 5, and"):
        graph.autotune({"A": 1, 5: 2, None: 3})
    small = lowdnn.empty((1, 2, 2), data_type=data_type.FLOAT, handle=handle)
    with pytest.raises(BadParamError, match=r"autotune.tensor_dict\['a' \(uid"):
        graph.autotune({"a": small})


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"budget_s": 0}, "tuning.budget_s"),
        ({"budget_s": float("nan")}, "tuning.budget_s"),
        ({"workspace_limit": True}, "tuning.workspace_limit"),
        ({"engines": ["none"]}, "autotune.engines"),
        ({"workspace_limit": -1}, "tuning.workspace_limit"),
        ({"knobs": {knob_type.TILE_M: ["many"]}}, "autotune.knobs"),
    ],
)
def test_wrong_arguments_are_named(handle: Handle, arguments: dict[str, object], where: str) -> None:
    with pytest.raises(BadParamError, match=where):
        product(handle).autotune(**arguments)


def test_a_graph_for_a_device_that_is_not_here_cannot_be_tuned() -> None:
    with pytest.raises(BadParamError, match="expected a device to tune on"):
        product(None, sm_version=90).autotune()


def test_an_engine_that_refuses_the_graph_is_told(handle: Handle) -> None:
    with pytest.raises(NotSupportedError, match="no engine takes the graph within what may be tried"):
        product(handle).autotune(engines=["conv_direct"])


def test_mode_b_tunes_where_the_handle_says_so(handle: Handle, tmp_path: Path) -> None:
    handle.tuning = TuningOptions(budget_s=5.0)
    product(handle).build([heur_mode.A])
    assert not list(tmp_path.iterdir())
    graph = product(handle)
    graph.build([heur_mode.B])
    (record,) = RecordFile.in_directory(tmp_path).records()[0].values()
    assert f"_{record.engine}_" in graph.get_plan_name_at_index(0)
