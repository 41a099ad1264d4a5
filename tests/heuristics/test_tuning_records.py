"""Tuning records: those that ship hold for the graphs that they name, and come first where they apply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, SM_100, SM_120, ArchSpec, spec_for
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import HeurMode, KnobType
from lowdnn.heuristics.ranking import rank
from lowdnn.heuristics.tuning_records import (
    TuningRecord,
    file_text,
    record_of,
    records_in,
    shipped_records,
    short_key,
)
from lowdnn.status import BadParamError
from tests.support.errors import raises

SHIPPED = shipped_records("sm_90a")
KEY, RECORD = next(iter(SHIPPED.items()))
GRAPH = parse_case(RECORD.case).graph()


def test_shipped_records_are_plans_of_their_graphs_and_the_first_choices() -> None:
    for key, record in SHIPPED.items():
        graph = parse_case(record.case).graph()
        best = rank(graph, SM_90A, HeurMode.A, ENGINES).best
        assert best is not None
        assert (short_key(graph), best.plan.engine, dict(best.plan.choices)) == (key, record.engine, record.choices)


def test_files_are_read_as_they_were_written() -> None:
    record = TuningRecord("matmul m=8 n=8 k=8", "matmul_mma", {KnobType.TILE_M: 64, KnobType.STAGES: 3}, 1.25)
    assert records_in(file_text({"0123456789abcdef": record})) == {"0123456789abcdef": record}


@pytest.mark.parametrize(
    "line",
    [
        *("", "key", "key | case", "key | case | engine | many", "key | case | engine NO_KNOB=1 | 1.0"),
        *("key | a | b STAGES | 1", "key | a | b STAGES=1e9 | 1", "key | a | b STAGES=9999999999999999999 | 1"),
        *("key | a | b | 1e999", "key | a | b | nan"),
    ],
)
def test_other_lines_are_refused(line: str) -> None:
    with raises(BadParamError, "tuning record", expected="<case> | <engine> <KNOB>=<integer>"):
        records_in(f"{line}\n")


def test_instant_mode_asks_the_cost_model_alone() -> None:
    instant = rank(GRAPH, SM_90A, HeurMode.INSTANT, ENGINES).best
    assert instant is not None
    assert dict(instant.plan.choices) != RECORD.choices


@pytest.mark.parametrize(("mode", "is_measured"), [(HeurMode.A, True), (HeurMode.B, True), (HeurMode.FALLBACK, False)])
def test_records_are_of_the_modes_that_ask_for_speed(mode: HeurMode, is_measured: bool) -> None:
    record = next(record for record in SHIPPED.values() if record.engine == "norm_rows")
    best = rank(parse_case(record.case).graph(), SM_90A, mode, ENGINES).best
    assert best is not None
    assert best.engine.name == "norm_rows"
    assert ("measured" in best.reason) == is_measured


@pytest.mark.parametrize("arch", [SM_80, SM_100, SM_120, spec_for(9, 1), replace(SM_90A, sm_count=114)])
def test_records_are_of_one_device(arch: ArchSpec) -> None:
    assert record_of(GRAPH, SM_90A) == RECORD
    assert record_of(GRAPH, arch) is None


def test_a_record_comes_before_the_list_of_the_cost_model() -> None:
    measured, *others = rank(GRAPH, SM_90A, HeurMode.A, ENGINES).candidates
    estimated = rank(GRAPH, SM_90A, HeurMode.INSTANT, ENGINES).candidates
    assert (measured.engine.name, measured.estimated_us) == (RECORD.engine, RECORD.us)
    assert "measured" in measured.reason
    assert [found.reason for found in others] == [found.reason for found in estimated]


def test_engines_that_are_not_asked_have_no_records() -> None:
    engines = [engine for engine in ENGINES if engine is not engine_named(RECORD.engine)]
    best = rank(GRAPH, SM_90A, HeurMode.A, engines).best
    assert best is not None
    assert best.engine.name != RECORD.engine
