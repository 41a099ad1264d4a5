"""Result files of the benchmarks as they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.bench.floor import card_named
from lowdnn.bench.table import read_rows

RESULTS = Path(__file__).resolve().parents[2] / "tools" / "bench" / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("*.csv")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_rows_lie_in_the_folder_of_their_card(file: Path) -> None:
    rows = read_rows(file)
    assert {card_named(row.gpu).name.lower() for row in rows} == {file.parent.name}
    assert {row.suite for row in rows} == {file.stem}
