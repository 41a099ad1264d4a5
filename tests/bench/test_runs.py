"""Runs: cases timed on a device, and the files that keep them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.bench.report import summaries
from lowdnn.bench.runs import BenchClock, CaseTimes, Run, batches, measured, save, saved_runs, write_csv
from lowdnn.bench.suites import SuiteCase
from lowdnn.bench.workbench import Workbench
from lowdnn.cases import parse_case
from lowdnn.cases.families.any_graph import GraphCase
from lowdnn.status import BadParamError, LowdnnError, SerializationVersionMismatchError
from tests.cases.test_cases import FILES, cases_of

TIMES = CaseTimes("gemm", "matmul m=8 n=8 k=8", "net", 3, "engine", "A=1", 10.0, 9.0, 11.0, 5.0, 1e3, 2e3)
RUN = Run("NVIDIA H200", BenchClock.EVENTS, "13000", "0.2.0", "abc", "2026-01-02T03:04:05+00:00", (TIMES,))


def test_a_case_of_every_family_is_timed(handle: Handle) -> None:
    """Its data are within the bounds that kernels rely on."""
    texts = [str(cases_of(path)[-1]) for path in FILES]
    with Workbench(handle) as bench:
        prepared = bench.prepare([*texts, "matmul m=4"])
        times = bench.round()
    assert [one.error for one in prepared[:-1]] == [""] * len(FILES)
    assert all(one.engine for one in prepared[:-1])
    assert prepared[-1].error.startswith("BAD_PARAM matmul.n")
    assert times[-1] is None
    assert min(us for us in times if us is not None) > 0


def test_packed_sequences_and_pages_are_within_their_tensors(handle: Handle) -> None:
    texts = [
        "sdpa_bwd b=4 h=4 q=100 d=64 hk=2 kv=70 right=0 lengths=both ragged=yes",
        "sdpa b=2 h=2 q=1 kv=50 d=16 page=16 lengths=yes",
        "moe experts=4 rows=30 n=16 k=16 mode=scatter tokens=15 top_k=2",
    ]
    graphs = [str(GraphCase.of(parse_case(text).graph())) for text in texts]
    with Workbench(handle) as bench:
        assert [one.error for one in bench.prepare([*texts, *graphs])] == [""] * 6
        assert None not in bench.round()


def test_memory_is_given_back(handle: Handle) -> None:
    context = handle.runtime.context

    def free_bytes() -> int:
        with context.activated():
            return context.driver.mem_get_info()[0]

    left = []
    with Workbench(handle) as bench:
        for texts in (["softmax dims=64x64", "x"], [], ["softmax dims=64x64"], []):
            bench.prepare(texts)
            left.append(free_bytes())
    assert left[0] < left[1] == left[3] == free_bytes()
    assert left[2] == left[0]


def test_a_run_tells_what_its_numbers_are(handle: Handle) -> None:
    texts = ("matmul m=8 n=8 k=8", "softmax dims=4x8", "x")
    cases = [(count, SuiteCase(name, text)) for count, name, text in zip((2, 1, 1), "abb", texts, strict=True)]
    *_, run = measured(handle, cases, rounds=3, commit="abc")
    assert (run.clock, run.commit, len(run.times)) == (BenchClock.COUNTED, "abc", 3)
    assert "no time was measured" in run.clock.words
    first, second, wrong = run.times
    assert (first.count, first.class_, first.flops, first.bytes) == (2, "a", 1024.0, 768.0)
    assert first.low_us <= first.us <= first.high_us
    assert (second.floor_us, second.share) == (0.0, 0.0)
    assert wrong.error.startswith("BAD_PARAM case")
    assert [*run.by_case] == ["matmul m=8 n=8 k=8", "softmax dims=4x8"]
    assert [(each.name, each.cases, each.errors) for each in summaries(run.times)] == [("a", 1, 0), ("b", 1, 1)]


def test_cases_are_timed_in_batches_that_fit() -> None:
    cases = [(1, SuiteCase("c", text)) for text in ("pointwise dims=1000 ops=relu", "x", *["softmax dims=8"] * 20)]
    assert [len(batch) for batch in batches(cases, 1 << 40)] == [16, 6]
    assert [len(batch) for batch in batches(cases[:3], 1)] == [1, 1, 1]
    assert [*batches([], 1)] == []


def test_runs_are_added_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    other = replace(RUN, clock=BenchClock.COUNTED, times=())
    save(RUN, path)
    save(other, path)
    assert saved_runs(path) == [RUN, other]
    assert RUN.times[0].share == 0.5


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"lowdnn_bench": 2}, SerializationVersionMismatchError),
        ({"clock": "sundial"}, BadParamError),
        ({"device": 3}, BadParamError),
        ({"times": [{}]}, BadParamError),
        ({"times": [{**vars(TIMES), "us": "10"}]}, BadParamError),
        ({"times": [{**vars(TIMES), "us": -1}]}, BadParamError),
        ({"times": [{**vars(TIMES), "us": True}]}, BadParamError),
        ({"times": [{**vars(TIMES), "us": 0.0}]}, BadParamError),
        ({"times": [{**vars(TIMES), "count": 1.5}]}, BadParamError),
        ({"more": 1}, BadParamError),
    ],
)
def test_a_damaged_file_is_refused_and_left_alone(
    tmp_path: Path, change: dict[str, object], error: type[LowdnnError]
) -> None:
    path = tmp_path / "runs.jsonl"
    save(RUN, path)
    text = json.dumps(json.loads(path.read_text()) | change)
    path.write_text(text)
    with pytest.raises(error, match=r"runs\.jsonl:1"):
        saved_runs(path)
    with pytest.raises(error):
        save(RUN, path)
    assert path.read_text() == text


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadParamError, match="expected a readable file"):
        saved_runs(tmp_path / "none")


def test_rows_have_the_facts_of_their_run(tmp_path: Path) -> None:
    write_csv(RUN, tmp_path / "times.csv")
    with (tmp_path / "times.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["class"], row["us"], row["device"], row["clock"]) == ("gemm", "10.0", "NVIDIA H200", "events")
