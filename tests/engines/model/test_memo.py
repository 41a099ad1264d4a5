"""Results that are kept."""

from __future__ import annotations

from functools import partial

from lowdnn.engines.model.memo import Memo


def test_a_result_is_worked_out_once_and_can_be_looked_up() -> None:
    asked: list[tuple[int, str]] = []

    @partial(Memo, most=3)
    def repeated(count: int, text: str) -> str:
        asked.append((count, text))
        return text * count

    assert repeated.known(2, "ab") is None
    assert asked == []
    assert repeated(2, "ab") == repeated(2, "ab") == repeated.known(2, "ab") == "abab"
    assert repeated(0, "ab") == repeated(0, "ab") == ""
    assert asked == [(2, "ab"), (0, "ab")]


def test_no_more_results_are_kept_than_said() -> None:
    squared = Memo(lambda number: number * number, most=3)
    for number in range(10):
        assert squared(number) == number * number
        assert sum(squared.known(other) is not None for other in range(10)) <= 3
    assert squared.known(9) == 81
