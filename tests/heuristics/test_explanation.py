from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case, parse_cases
from lowdnn.engines.base import Refusal
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.frontend import data_type, pygraph
from lowdnn.heuristics.explanation import HEIGHT, WIDTH, Explanation, Outcome
from lowdnn.heuristics.ranking import rank
from lowdnn.heuristics.tuning.record_books import released_lines
from lowdnn.heuristics.tuning.records import TuningRecord

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.txt"))
OUTCOME = Outcome("conv_direct", "64 columns", 60.0, None, 0, (), "1 launch")


def explained(line: str) -> Explanation:
    graph = parse_case(line).graph()
    return Explanation.of(rank(graph, SM_90A, HeurMode.A, ENGINES), ENGINES, graph)


def test_the_sentence_has_times_and_needs() -> None:
    found = explained("conv n=64 c=64 hw=56x56 k=64 rs=3x3 pad=1 stride=2 dtype=bf16")
    first, *_ = found.outcomes
    assert found.chosen is first
    assert first.notes == ("tensor core",)
    assert found.sentence.startswith(f"fprop wgmma {first.predicted_us:.3g} us; ")
    assert "stem needs at most 4 channels" in found.sentence
    lines = str(found).splitlines()
    assert [line[:2] for line in lines if "conv_fprop_wgmma" in line.split()] == ["> "]
    assert "    tensor core; 1 launch, 3.71e+09 flops, 3.22e+07 bytes" in lines


def test_a_measured_time_stands_beside_the_predicted_one() -> None:
    text = next(iter(released_lines().by_graph.values()))[-1]
    record = TuningRecord.of(text)
    found = explained(record.case)
    chosen = found.chosen
    assert chosen is not None
    assert chosen.measured_us == pytest.approx(record.us)
    assert chosen.predicted_us != chosen.measured_us
    assert f"{record.us:.3g} us measured" in found.sentence
    assert any(f"{record.us:.1f}" in line for line in str(found).splitlines() if line.startswith(">"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_listed_case_fits_a_screen(path: Path) -> None:
    """And the parts of the text are those of the ranking."""
    for number, case in enumerate(parse_cases(path.read_text().splitlines())):
        arch, graph = (SM_90A, SM_80)[number % 2], case.graph()
        ranking = rank(graph, arch, HeurMode.A, ENGINES)
        lines = str(Explanation.of(ranking, ENGINES, graph)).splitlines()
        assert len(lines) <= HEIGHT
        assert max(map(len, lines)) <= WIDTH, str(case)
        assert [line.split()[1] for line in lines if line.startswith("> ")] == [ranking.candidates[0].engine.name]


def test_many_candidates_and_refusals_are_cut() -> None:
    outcomes = tuple(replace(OUTCOME, engine=f"conv_{number}", algorithm="x" * 99) for number in range(30))
    refusals = tuple(Refusal(f"conv_r{number}", "dims: " + "y" * 200) for number in range(60))
    lines = str(Explanation(outcomes, outcomes[3], refusals, 7)).splitlines()
    assert (len(lines), max(map(len, lines))) == (HEIGHT, WIDTH)
    assert "  and 20 more" in lines
    assert lines[-1].endswith("more")
    shown = sum(line.startswith("  conv_r") for line in lines)
    assert lines[-1] == f"  and {61 - shown} more"
    assert "conv_3 " in next(line for line in lines if line.startswith("> "))


def test_what_is_left_out_says_why() -> None:
    outcomes = (replace(OUTCOME, left_out="a filter of the caller"), replace(OUTCOME, engine="conv_stem"))
    found = Explanation(outcomes, outcomes[1], (), 0)
    assert found.sentence == "stem 60 us; direct left out: a filter of the caller"
    assert Explanation(outcomes[:1], None, (), 0).sentence == "no plan is left"
    assert Explanation((), None, (), 0).sentence == "no engine takes the graph"


def test_a_graph_explains_its_filters() -> None:
    kind = data_type.FLOAT
    graph = pygraph("product", kind, kind, kind, sm_version=90)
    graph.matmul(graph.tensor([1, 64, 64]), graph.tensor([1, 64, 64])).set_output(True)
    graph.build_operation_graph()
    graph.create_execution_plans()
    chosen = next(line for line in graph.explain().splitlines() if line.startswith("> "))
    graph.deselect_engines([chosen.split()[1]])
    lines = graph.explain().splitlines()
    assert [line for line in lines if line.startswith("> ")] != [chosen]
    assert any("deselect" in line for line in lines)
