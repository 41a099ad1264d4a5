from __future__ import annotations

from lowdnn.engines.model.search import first_of_least


def test_items_that_a_bound_rules_out_are_not_timed() -> None:
    costs, timed = {"a": 5.0, "b": 3.0, "c": 9.0, "d": 3.0}, []

    def cost(item: str) -> float:
        timed.append(item)
        return costs[item]

    bounded = [(4.0, "a"), (2.0, "b"), (8.0, "c"), (3.0, "d")]
    assert first_of_least(bounded, cost) == "b"
    assert timed == ["b", "d"]


def test_of_equal_costs_the_first_item_is_taken_whatever_its_bound() -> None:
    assert first_of_least([(2.0, "a"), (1.0, "b")], lambda item: 2.0) == "a"
    assert first_of_least([], lambda item: 0.0) is None
