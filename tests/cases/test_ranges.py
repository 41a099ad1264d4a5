"""Cases with ranges: which lines they stand for."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from lowdnn.cases.ranges import has_ranges, lines_in
from lowdnn.status import BadParamError


def values(line: str, most: int, place: int = 0) -> list[int]:
    return [int(re.findall(r"\d+", found)[place]) for found in lines_in(line, most)]


def test_a_line_without_a_range_stands_for_itself() -> None:
    line = "norm dims=5x96 mode=layer epsilon=1e-5"
    assert lines_in(line, 60) == [line]
    assert not has_ranges('graph ops=["1..2"]')
    assert lines_in('graph ops=["1..2"]', 60) == ['graph ops=["1..2"]']


def test_a_short_range_is_taken_whole() -> None:
    assert sorted(values("m=3..9", 60)) == [*range(3, 10)]
    assert sorted(values("m=0..2", 60)) == [0, 1, 2]
    assert values("m=7..7", 60) == [7]
    assert sorted(values("k=64..300/64", 60)) == [64, 128, 192, 256]


def test_a_long_range_is_drawn_from_evenly_on_both_scales() -> None:
    found = values("m=1..8192", 60)
    assert found[:2] == [1, 8192]
    assert len(set(found)) == 60
    for octave in range(13):  # the smallest have few numbers
        assert any(2**octave <= value <= 2 ** (octave + 1) for value in found)
    large = sorted(value for value in found if value > 1000)
    assert max(b - a for a, b in pairwise(large)) < 8192 / 12
    assert 0.3 < sum(value % 2 for value in found) / 60 < 0.7  # so that alignments of both kinds are there


def test_several_ranges_vary_independently() -> None:
    line = "dims=1..4096x64..8192"
    rows, sizes = values(line, 60), values(line, 60, place=1)
    quadrants = {(row > 512, size > 1024) for row, size in zip(rows, sizes, strict=True)}
    assert len(quadrants) == 4
    assert lines_in(line, 60) == lines_in(line, 90)[:60]
    corners = [*zip(rows, sizes, strict=True)][:4]
    assert sorted(corners) == [(1, 64), (1, 8192), (4096, 64), (4096, 8192)]


@pytest.mark.parametrize("text", ["9..3", "1..8/0"])
def test_other_ranges_are_refused(text: str) -> None:
    with pytest.raises(BadParamError, match=f"expected first..last or first..last/step.*got {text}"):
        lines_in(f"matmul m={text} n=4 k=4", 60)


def test_a_line_has_a_bounded_number_of_ranges() -> None:
    with pytest.raises(BadParamError, match="expected at most 8 ranges"):
        lines_in("dims=" + "x".join(["1..2"] * 9), 60)
