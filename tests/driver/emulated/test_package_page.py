"""The example of the package's page runs as it stands, and its tables name what there is."""

from __future__ import annotations

import doctest
import re

from lowdnn.driver import emulated
from lowdnn.driver.emulated.instructions.table import TABLE
from lowdnn.driver.emulated.options import Options
from tests.test_layers import EMULATED


def test_the_example_runs() -> None:
    results = doctest.testmod(emulated)
    assert results.failed == 0
    assert results.attempted > 10


def test_policies_of_the_page_exist() -> None:
    names = r"^\| (lockstep|warp-serial\(seed\)|cta-reverse|fuzz\(seed\)) "
    rows = re.findall(names, str(emulated.__doc__), re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        Options(policy=row.replace("seed", "3"))


def test_the_text_of_options_on_the_page_is_taken() -> None:
    (text,) = re.findall(r"``(fuzz\(\d+\),[a-z,=\d]+)``", str(emulated.__doc__))
    assert Options.parse(text) == Options("fuzz(7)", landing="early", races=True, timeout_s=5)


def test_what_the_page_calls_refused_has_no_row() -> None:
    assert {"tex", "tld4", "suld", "vadd"}.isdisjoint(TABLE)


def test_the_order_on_the_page_is_the_tested_one() -> None:
    (text,) = re.findall(
        r"\*\*The order of the packages\.\*\*[^:]*:(.*?)``device`` and ``options``", str(emulated.__doc__), re.DOTALL
    )
    ranks = {part: rank for rank, line in enumerate(EMULATED.lines) for part in line}
    names = re.findall(r"``([a-z_.]+)``", text)
    assert {*names, "device", "options"} == set(ranks)
    assert [ranks[name] for name in names] == sorted(ranks[name] for name in names)
    assert max(ranks["device"], ranks["options"]) < ranks["program"]
