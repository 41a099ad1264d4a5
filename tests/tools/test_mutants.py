"""The mutation harness: its tables fit the product as it is, and a small tree shows its verdicts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools.checks import mutants
from tools.checks.mutant_tables import ROOT, Mutant, read_table, read_tables, select

TABLE = read_tables()

#: Tests that hold texts, not behaviour: whatever is edited, they see it.
GUARDS = ("tests/test_layers.py", "tests/test_assembly.py", "tests/tools/test_mutants.py")

TEXT = """
# a comment
== module.py | test_module.py
* a sum that is a difference
- return a + b
+ return a - b
@ test_module.py -k "sum and not other"
* a name that nobody reads
- return b + a
+ return a + b
equivalent: The sum is the same.
"""


@pytest.mark.parametrize("layer", sorted({mutant.layer for mutant in TABLE}))
def test_every_mutant_has_its_place_and_its_tests(layer: str) -> None:
    for mutant in select(TABLE, layers=[layer]):
        assert mutant.applied((ROOT / mutant.file).read_text()) != (ROOT / mutant.file).read_text()
        paths = [argument.partition("::")[0] for argument in mutant.tests if argument.startswith("tests/")]
        assert paths, f"{mutant} has no tests"
        assert all((ROOT / path).exists() for path in paths), f"{mutant}: {paths}"
        assert not any(path.startswith(GUARDS) for path in paths), f"{mutant}: expected tests of behaviour"


def test_mutants_are_many_and_differ() -> None:
    assert len(TABLE) >= 200
    assert max(Counter(mutant.key for mutant in TABLE).values()) == 1
    assert max(Counter(map(str, TABLE)).values()) == 1


def test_mutants_that_need_pytorch_are_left_out_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    some = select(TABLE, ["torch", "ops"])
    monkeypatch.setattr(mutants, "find_spec", lambda name: None)
    assert mutants.runnable(some) == select(TABLE, ["ops"])
    monkeypatch.setattr(mutants, "find_spec", lambda name: name)
    assert mutants.runnable(some) == some


def test_a_table_is_read_line_by_line() -> None:
    first, second = read_table("layer", TEXT)
    assert first == Mutant(
        "layer",
        "module.py",
        "a sum that is a difference",
        "return a + b",
        "return a - b",
        ("test_module.py", "-k", "sum and not other"),
    )
    assert second.is_equivalent
    assert second.reason == "The sum is the same."
    with pytest.raises(ValueError, match=r"layer.txt:1: expected a mark of a mutant, got '\- x'"):
        list(read_table("layer", "- x"))


def test_a_place_that_is_not_there_once_is_an_error() -> None:
    (mutant, _) = read_table("layer", TEXT)
    assert mutant.applied("return a + b\n") == "return a - b\n"
    for text in ("return b + a", "return a + b; return a + b"):
        with pytest.raises(ValueError, match=r"expected its text once in module\.py"):
            mutant.applied(text)


def test_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path / "checkout")
    monkeypatch.setattr(mutants, "COPIED", ("module.py", "test_module.py"))
    monkeypatch.setattr(mutants, "LINKED", ())
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "module.py").write_text("def total(a, b):\n    return a + b\n")
    (tmp_path / "checkout" / "test_module.py").write_text(
        "from module import total\ndef test_sum():\n    assert total(2, 2) == 4\n"
    )

    def mutant(new: str, tests: str = "test_module.py") -> Mutant:
        return Mutant("layer", "module.py", new, "a + b", new, (tests,))

    tree = mutants.Tree(tmp_path / "copy", tmp_path / "kernels")
    outcomes = {
        new: tree.verdict(mutant(new), mutants.CleanTests().passes).outcome
        for new in ("a - b", "a * b", "a +", "b + a")
    }
    assert outcomes == {"a - b": "caught", "a * b": "survived", "a +": "invalid", "b + a": "survived"}
    assert tree.verdict(mutant("a - b", "test_none.py"), mutants.CleanTests().passes).outcome == "invalid"
    assert (tmp_path / "checkout" / "module.py").read_text().endswith("a + b\n")
