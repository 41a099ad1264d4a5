"""The benchmark suites: their cases, and the choice of some."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import spec_named
from lowdnn.bench.networks import cases_of
from lowdnn.bench.suites import DEVICE_SUITES, TARGETS, SuiteCase, expanded, mixed, of_classes, sampled
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import rank

_CASES = [SuiteCase(class_, f"case {number}") for class_ in ("large", "small") for number in range(10)][:13]


@pytest.mark.parametrize("suite", DEVICE_SUITES)
def test_every_case_parses_to_itself_and_occurs_once_in_its_class(suite: str) -> None:
    cases = cases_of(suite)
    assert len(set(cases)) == len(cases)
    for case in cases:
        assert str(parse_case(case.text)) == case.text
        assert parse_case(case.text).graph().operations


def test_every_class_of_the_table_has_cases_and_few_are_without_targets() -> None:
    classes = {case.class_ for suite in DEVICE_SUITES for case in cases_of(suite)}
    assert classes == {*TARGETS, "block scales", "causal convolutions along sequences"}


def test_every_case_bound_by_memory_has_an_engine_of_its_own() -> None:
    for case in cases_of("membound"):
        best = rank(parse_case(case.text).graph(), spec_named("sm_90a"), HeurMode.A, ENGINES).best
        assert best is not None, case.text
        assert best.engine.name != "composite", case.text


def test_braces_stand_for_each_combination() -> None:
    assert list(expanded("a={1,2} b=x c={u,v}")) == [
        "a=1 b=x c=u",
        "a=1 b=x c=v",
        "a=2 b=x c=u",
        "a=2 b=x c=v",
    ]
    assert list(expanded("a=0,1 b=2")) == ["a=0,1 b=2"]


def test_cases_are_chosen_by_class_or_network() -> None:
    cases = cases_of("conv")
    assert {case.class_ for case in of_classes(cases, ["stem"])} == {"stem and narrow 1x1"}
    assert all("vgg16" in case.network for case in of_classes(cases, ["VGG16"]))
    assert of_classes(cases, []) == cases


def test_a_sample_takes_so_many_of_each_class_and_depends_on_the_seed() -> None:
    chosen = sampled(_CASES, 5, seed=1)
    assert [case.class_ for case in chosen] == ["large"] * 5 + ["small"] * 3
    assert chosen == sampled(_CASES, 5, seed=1)
    assert any(sampled(_CASES, 5, seed=seed) != chosen for seed in range(2, 9))


def test_the_first_part_of_a_mixed_order_serves_every_class() -> None:
    order = mixed(_CASES, seed=1)
    assert sorted(order, key=_CASES.index) == _CASES
    assert [case.class_ for case in order[:6]].count("small") == 3
