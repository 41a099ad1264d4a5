"""Versions are ordered as releases are, and ranges take what their text says."""

from __future__ import annotations

import random

import pytest

from lowdnn.cli.doctor.versions import Version, VersionRange
from lowdnn.status import BadParamError


def test_order_of_random_versions() -> None:
    """Two texts are ordered as their numbers with zeros behind them."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(300):
        first, second = ([rng.randrange(3) for _ in range(rng.randint(1, 4))] for _ in range(2))
        versions = [Version.found(".".join(map(str, numbers))) for numbers in (first, second)]
        padded = [tuple(numbers + [0] * (4 - len(numbers))) for numbers in (first, second)]
        assert versions[0] is not None
        assert versions[1] is not None
        assert (versions[0] < versions[1]) is (padded[0] < padded[1]), seed
        assert (versions[0] == versions[1]) is (padded[0] == padded[1]), seed


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=580.65", ["580.65", "580.65.06", "590.1"], ["580.64.99", "570", ""]),
        ("==13.0.*", ["13.0.88", "13", "13.0"], ["13.1", "12.0"]),
        ("!=2.9.*, >=2", ["2.10", "2.8.9"], ["2.9.1", "1.9"]),
        (">=2.9,<2.14", ["2.9.0+cu130", "2.13.1"], ["2.14", "2.9.0rc1", "2.14.1"]),
        ("~=2.9.1", ["2.9.1", "2.9.5"], ["2.9.0", "2.10"]),
        ("<3", ["3.0rc1", "3.0.0.dev5", "2"], ["3", "3.0.1"]),
        (">2.9", ["2.9.1"], ["2.9", "2.9.0"]),
        ("<=2.9", ["2.9", "2.9.0rc1"], ["2.9.1"]),
    ],
)
def test_ranges(text: str, inside: list[str], outside: list[str]) -> None:
    found = VersionRange.of(text, "line")
    assert [version for version in inside if not found.has(version)] == []
    assert [version for version in outside if found.has(version)] == []


@pytest.mark.parametrize(
    "text", ["", "2.9", "=>2.9", ">=", ">=2,", ">=x", ">=2.9.*", "~=2", "== 2 9", ">=2;os", ">=2..3"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadParamError, match=r"^BAD_PARAM line: expected a range of versions"):
        VersionRange.of(text, "line")
