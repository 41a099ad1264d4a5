"""Costs follow from the benchmark's rows, and the guide's table is theirs."""

from __future__ import annotations

import sys

import pytest

from lowdnn.guide.pages import page
from tools.bench import cost


def test_rows_of_the_guide_are_those_of_the_results() -> None:
    text = page("production/cost").text
    for name in ("resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_t"):
        assert cost.row(cost.network_time(name, "h200"), 4.0) in text


def test_a_cost_by_hand() -> None:
    """A GPU at 3.60 an hour costs 0.001 a second: a million images at 1000 a second take 1000 seconds."""
    assert cost.cost(3.60, 1000) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--price", "1", "nothing"], "network: expected one of resnet50"),
        (["--price", "1", "--card", "abacus", "vgg16"], "card: expected a folder of results"),
    ],
)
def test_what_is_not_there_is_named(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cost", *arguments])
    with pytest.raises(SystemExit, match=message):
        cost.main()
