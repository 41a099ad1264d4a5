"""The list of recurrent networks of the benchmarks, and their floors."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from lowdnn.bench.floor import H200, floor_us, moved_bytes, step_floor_us
from lowdnn.bench.recurrent import CLASSES, COUNT, networks
from lowdnn.bench.suites import suite_cases
from lowdnn.cases import parse_case
from lowdnn.cases.families.recurrent import RnnCase


def _cases() -> list[RnnCase]:
    return [case for case in map(parse_case, networks()) if isinstance(case, RnnCase)]


def test_the_list_is_drawn_once_and_for_all() -> None:
    found = networks()
    assert len(set(found)) == len(found) == COUNT
    assert sha256("\n".join(found).encode()).hexdigest()[:16] == "8b2b7411d3fb42db"


def test_every_corner_of_every_cell_is_there() -> None:
    sizes = {(case.cell, case.h, case.b, case.t, case.layers) for case in _cases()}
    corners = {
        (cell, h, b, t, layers)
        for cell in ("tanh", "lstm", "gru")
        for h in (256, 2048)
        for b in (1, 128)
        for t in (25, 512)
        for layers in (1, 4)
    }
    assert corners <= sizes
    assert all(case.i == case.h for case in _cases())


def test_every_value_is_there_in_both_types() -> None:
    cases = _cases()
    for field, values in {"h": 5, "b": 4, "t": 3, "layers": 2, "cell": 3}.items():
        assert len({(getattr(case, field), case.dtype) for case in cases}) == 2 * values


def test_each_network_has_a_case_in_each_class() -> None:
    cases = suite_cases("rnn")
    assert len(cases) == 3 * COUNT
    for class_, direction in CLASSES.items():
        directions = [parse_case(case.text) for case in cases if case.class_ == class_]
        assert {case.dir for case in directions if isinstance(case, RnnCase)} == {direction}
        assert len(directions) == COUNT


@pytest.mark.parametrize("direction", ["fwd", "train", "bwd"])
def test_the_floor_of_a_network_is_that_of_its_steps(direction: str) -> None:
    """H = 1024, B = 64: 2 * 4096 * 1024 * 64 / 790e12 s of products in 0.9 us of hand-over and gates."""
    case = parse_case(f"rnn cell=lstm t=128 b=64 i=1024 h=1024 dtype=fp16 dir={direction}")
    graph = case.graph()
    product_us = 2 * 4096 * 1024 * 64 / 790e6
    products = 3 if direction == "bwd" else 1
    assert step_floor_us(graph, H200) == pytest.approx(0.9 + product_us)
    assert floor_us(graph, H200) == pytest.approx(128 * (0.9 + product_us) + products * 128 * product_us)


def test_layers_that_fit_on_chip_together_may_run_beside_each_other() -> None:
    few, many = (f"rnn cell=gru t=128 b=16 i={size} h={size} layers=4 dtype=bf16" for size in (256, 2048))
    graph = parse_case(few).graph()
    assert 131 * step_floor_us(graph, H200) < floor_us(graph, H200) < 140 * step_floor_us(graph, H200)
    graph = parse_case(many).graph()
    assert floor_us(graph, H200) > 512 * step_floor_us(graph, H200)


def test_a_layer_that_fits_into_a_cluster_hands_over_within_it() -> None:
    """R of 2 MiB does, R of 8 MiB does not."""
    within, beyond = (
        step_floor_us(parse_case(f"rnn cell=lstm t=25 b=1 i={size} h={size} dtype=fp16").graph(), H200)
        for size in (512, 1024)
    )
    assert within == pytest.approx(0.45 + 2 * 2048 * 512 / 790e6)
    assert beyond == pytest.approx(0.9 + 2 * 4096 * 1024 / 790e6)


def test_a_step_that_reads_its_weights_waits_for_the_cache() -> None:
    """R of 8192 x 2048 in bf16 fits on chip; R in fp32, of 64 MiB, does not."""
    on_chip, beyond = (
        step_floor_us(parse_case(f"rnn cell=lstm t=25 b=1 i=2048 h=2048 dtype={kind}").graph(), H200)
        for kind in ("bf16", "fp32")
    )
    assert on_chip == pytest.approx(0.9 + 2 * 8192 * 2048 / 790e6)
    assert beyond == pytest.approx(0.9 + (4 * 8192 * 2048 - 132 * 400 * 1024) / 5.5e6)


def test_a_floor_is_never_below_the_bytes() -> None:
    for case in _cases():
        graph = replace(case, dir="train").graph()
        assert floor_us(graph, H200) >= moved_bytes(graph) / 4.3e6
