"""The tuner: candidates raced, checked and recorded; by estimates, and with every launch, on the emulated device."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.backend.autotuning import tune
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.config import Config
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, rank
from lowdnn.heuristics.tuning.record_books import Records
from lowdnn.heuristics.tuning.records import RecordClock
from lowdnn.heuristics.tuning.search import SLACK, Scope
from lowdnn.heuristics.tuning.tensors import TuningTensors
from lowdnn.heuristics.tuning.timers import DeviceTimer, Estimated, TimedPlan, Timer
from lowdnn.heuristics.tuning.tuner import Tuned, Tuner, TuningDevice, TuningOptions
from lowdnn.status import BadParamError, CompilationFailedError, LowdnnError, NotSupportedError
from tests.support.errors import raises

GRAPH = parse_case("matmul m=64 n=64 k=64 dtype=bf16").graph()
LARGE = parse_case("matmul m=1024 n=1024 k=512 dtype=bf16").graph()
SMALL = {KnobType.TILE_M: (32, 64), KnobType.TILE_N: (32, 64), KnobType.TILEK: (32,), KnobType.STAGES: (2,)}


@pytest.fixture
def handle(tmp_path: Path, kernel_cache_dir: Path) -> Iterator[Handle]:
    config = Config(tuning_path=(tmp_path,), cache_dir=kernel_cache_dir)
    with Handle.open("emulated", config=config) as opened:
        yield opened


@dataclass
class Scripted:
    """A timer with times by the tiles of plans, of which some fail or are wrong."""

    us: Mapping[tuple[int, int], float]
    fails: tuple[tuple[int, int], ...] = ()
    wrong: tuple[tuple[int, int], ...] = ()
    clock = RecordClock.EVENTS

    def timed(self, candidate: Candidate) -> TimedPlan:
        if _tile(candidate) in self.fails:
            raise CompilationFailedError("no")
        return Estimated(self.us.get(_tile(candidate), 100.0))

    def disagreement(self, candidate: Candidate, first: Candidate) -> str:
        return "other numbers" if _tile(candidate) in self.wrong else ""

    def close(self) -> None:
        pass


def _tile(candidate: Candidate) -> tuple[int, int]:
    choices = dict(candidate.plan.choices)
    return choices[KnobType.TILE_M], choices[KnobType.TILE_N]


def scripted(handle: Handle, timer: Timer, options: TuningOptions | None = None) -> Tuner:
    chosen = options or TuningOptions(Scope(engines=("matmul_mma",)))
    return Tuner(TuningDevice(handle.runtime, handle.arch, handle.engines, handle.records, lambda _: timer), chosen)


def test_the_fastest_is_recorded_with_what_it_was_timed_on(handle: Handle) -> None:
    with scripted(handle, Scripted({(32, 32): 8.0, (64, 64): 4.0})) as tuning:
        (found,) = tuning.tune((GRAPH,))
    assert isinstance(found, Tuned)
    assert _tile(found.candidate) == (64, 64)
    record = found.record
    assert (record.us, record.warm_us, record.first_us, record.clock) == (4.0, 4.0, 8.0, RecordClock.EVENTS)
    assert (record.device, record.driver, record.case) == (
        "NVIDIA H200, sm_90a, 132",
        "13.0",
        "matmul m=64 n=64 k=64 dtype=bf16",
    )
    assert record.revision == handle.records.revision(found.candidate.plan)
    assert [trial.us for trial in found.trials] == sorted(trial.us for trial in found.trials)


def test_what_fails_or_computes_something_else_is_no_winner(handle: Handle, caplog: pytest.LogCaptureFixture) -> None:
    timer = Scripted({(64, 64): 8.0, (128, 64): 4.0, (64, 128): 2.0}, fails=((128, 64),), wrong=((64, 128),))
    with scripted(handle, timer) as tuning:
        (found,) = tuning.tune((LARGE,))
    assert isinstance(found, Tuned)
    assert _tile(found.candidate) == (64, 64)
    failures = {_tile(trial.candidate): trial.failure for trial in found.trials if trial.failure}
    assert "no" in failures[128, 64]
    assert failures[64, 128].endswith("other numbers")
    assert "results_differ" in caplog.text


def test_an_error_of_every_plan_is_the_graphs_and_the_next_graph_is_tuned(handle: Handle) -> None:
    class FailsOnce(Scripted):
        graphs = 0

        def timed(self, candidate: Candidate) -> TimedPlan:
            if candidate.graph is GRAPH:
                raise CompilationFailedError("never")
            return super().timed(candidate)

    other = parse_case("matmul m=64 n=64 k=32 dtype=bf16").graph()
    with scripted(handle, FailsOnce({})) as tuning:
        failed, tuned = tuning.tune((GRAPH, other))
    assert isinstance(failed, LowdnnError)
    assert "never" in str(failed)
    assert isinstance(tuned, Tuned)


def test_a_budget_ends_after_the_graph_at_hand_and_its_round(handle: Handle) -> None:
    class Slow(Scripted):
        def timed(self, candidate: Candidate) -> TimedPlan:
            time.sleep(0.02)
            return super().timed(candidate)

    graphs = [parse_case(f"matmul m=64 n=64 k={k} dtype=bf16").graph() for k in (32, 64, 96, 128)]
    with scripted(handle, Slow({}), TuningOptions(budget_s=0.01)) as tuning:
        found = list(tuning.tune(graphs))
    assert len(found) == 1
    assert isinstance(found[0], Tuned)
    assert math.isfinite(found[0].record.us)


def test_every_launch_of_a_tuning(handle: Handle) -> None:
    """On the emulated device, with a clock of events, kernels compiled by another process, and results compared."""

    def timer(graph: OperationGraph) -> Timer:
        context, stream = handle.runtime.context, handle.borrowed_stream()
        tensors = TuningTensors(context, graph, stream)
        tensors.slots = min(tensors.slots, 2)
        return DeviceTimer(handle.runtime, stream, tensors)

    graph = parse_case("matmul m=32 n=32 k=32 dtype=bf16").graph()
    knobs = SMALL | {KnobType.TILE_M: (32,), KnobType.SPLIT_K_SLC: (1,)}
    scope = Scope(engines=("matmul_mma",), knobs=knobs)
    device = TuningDevice(handle.runtime, handle.arch, handle.engines, handle.records, timer)
    with Tuner(device, TuningOptions(scope, processes=1)) as tuning:
        (found,) = tuning.tune((graph,))
        assert tuning.compilers.compiled == tuning.compilers.asked > 0
    assert isinstance(found, Tuned)
    assert not any(trial.failure for trial in found.trials)
    assert 0 < found.record.us < 1e6
    assert 0 < found.record.warm_us < 1e6


def test_a_scope_is_kept_and_its_choice_is_not_recorded_for_the_graph(handle: Handle) -> None:
    scope = Scope(workspace_limit=0, engines=("matmul_mma",), knobs=SMALL)
    found = tune(handle, GRAPH, TuningOptions(scope))
    for trial in found.trials:
        assert trial.candidate.engine.name == "matmul_mma"
        assert trial.candidate.plan.workspace_bytes == 0
        assert all(dict(trial.candidate.plan.choices)[knob] in values for knob, values in SMALL.items())
    assert handle.records.of(GRAPH, SM_90A) == ()
    with pytest.raises(NotSupportedError, match="within what may be tried"):
        tune(handle, GRAPH, TuningOptions(Scope(engines=("conv_direct",))))


def test_no_plan_has_a_looser_note_than_the_first_choice(handle: Handle) -> None:
    """Another engine that is near rounds operands to TF32."""
    graph = parse_case("matmul m=5 n=6 k=7").graph()
    first, *others = rank(graph, SM_90A, HeurMode.INSTANT, ENGINES, Records(())).candidates
    (rounding,) = (found for found in others if found.engine.name == "matmul_mma")
    assert first.engine.name == "matmul_simt"
    assert rounding.estimated_us < SLACK * first.estimated_us
    assert NumericalNote.TF32_INPUTS in rounding.plan.numerical_notes
    found = tune(handle, graph, TuningOptions())
    assert {trial.candidate.engine.name for trial in found.trials} == {"matmul_simt"}


def test_mode_b_tunes_where_the_handle_says_so_and_once(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not handle.rank(GRAPH, HeurMode.B).is_recorded
    handle.tuning = TuningOptions()
    assert not handle.rank(GRAPH, HeurMode.A).is_recorded
    assert handle.rank(GRAPH, HeurMode.B).is_recorded
    assert handle.rank(GRAPH, HeurMode.A).is_recorded
    monkeypatch.setattr("lowdnn.backend.autotuning.tune", lambda *_: pytest.fail("tuned again"))
    assert handle.rank(GRAPH, HeurMode.B).is_recorded
    assert not handle.rank(GRAPH, HeurMode.B, SM_90A.with_sm_count(7)).is_recorded


def test_a_variable_makes_mode_b_tune_in_programs_that_cannot_be_changed(
    tmp_path: Path, kernel_cache_dir: Path
) -> None:
    config = Config(tuning_path=(tmp_path,), cache_dir=kernel_cache_dir, tuning_s=2.5)
    with Handle.open("emulated", config=config) as opened:
        assert opened.tuning == TuningOptions(budget_s=2.5)
        assert opened.rank(GRAPH, HeurMode.B).is_recorded


def test_mode_b_plans_where_tuning_fails(handle: Handle, caplog: pytest.LogCaptureFixture) -> None:
    handle.tuning = TuningOptions(Scope(engines=("conv_direct",)))
    for _ in range(2):
        assert handle.rank(GRAPH, HeurMode.B).best is not None
    assert caplog.text.count("tuning_failed") == 1


def test_a_record_that_cannot_be_kept_counts_in_this_process_and_is_told(
    tmp_path: Path, kernel_cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    config = Config(tuning_path=(tmp_path / "file",), cache_dir=kernel_cache_dir)
    with Handle.open("emulated", config=config) as handle:
        tune(handle, GRAPH, TuningOptions())
        assert handle.rank(GRAPH, HeurMode.A).is_recorded
    assert "records_not_kept" in caplog.text


def test_given_inputs_are_copied_and_numbers_that_say_where_rows_are_fit(handle: Handle) -> None:
    context, stream = handle.runtime.context, handle.borrowed_stream()
    for text in (
        "sdpa b=2 h=2 q=16 d=32 lengths=yes dtype=bf16",
        "moe experts=2 rows=64 n=32 k=32 mode=gather tokens=32 layout=nt dtype=bf16",
        "resample n=1 c=4 hw=8x8 mode=max window=2 stride=2 dir=bwd dtype=bf16",
    ):
        graph = parse_case(text).graph()
        best = handle.rank(graph, HeurMode.A).best
        assert best is not None
        with TuningTensors(context, graph, stream) as tensors:
            tensors.slots = 1
            timer = DeviceTimer(handle.runtime, stream, tensors)
            assert timer.disagreement(best, best) == ""
            timer.close()


def test_a_budget_of_nothing_is_refused(handle: Handle) -> None:
    with raises(BadParamError, "tuning.budget_s", expected="the time of a round"):
        tune(handle, GRAPH, TuningOptions(budget_s=1e-12))
