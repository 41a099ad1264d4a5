from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.support.pairs import in_turn, pairs


@pytest.mark.parametrize("lengths", [(2, 2, 2), (9, 2, 2), (5, 2, 2, 3), (3, 4), (1, 3, 2), (4,)])
def test_every_two_values_meet_and_few_combinations_do(lengths: tuple[int, ...]) -> None:
    axes = [[f"{axis}.{value}" for value in range(length)] for axis, length in enumerate(lengths)]
    found = pairs(*axes)
    assert len(found) == len(set(found)) <= len(list(product(*axes)))
    for first, second in combinations(range(len(axes)), 2):
        assert {(row[first], row[second]) for row in found} == {*product(axes[first], axes[second])}
    longest = sorted(lengths, reverse=True)
    assert len(found) <= 1.5 * longest[0] * (longest[1] if len(longest) > 1 else 0)
    assert found == pairs(*axes)


def test_every_value_meets_one_of_the_others_in_turn() -> None:
    assert in_turn("abcd", (0, 1)) == [("a", 0), ("a", 1), ("b", 0), ("c", 1), ("d", 0)]
