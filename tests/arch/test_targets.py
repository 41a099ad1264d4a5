"""Which devices run which PTX, and what the kernels for each may use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import lowdnn
from lowdnn.arch.specs import SM_86, SM_89, SM_90A, SM_120, ArchSpec, all_specs
from lowdnn.arch.targets import GENERATIONS, generation_for, runs_on


@pytest.mark.parametrize(
    ("target", "runs", "refused"),
    [
        ("sm_80", [(8, 0), (8, 6), (9, 0), (10, 0), (12, 1), (13, 0)], [(7, 5)]),
        ("sm_89", [(8, 9), (9, 0), (12, 0)], [(8, 0), (8, 6), (8, 7)]),
        ("sm_90", [(9, 0), (10, 3), (12, 1)], [(8, 9)]),
        ("sm_90a", [(9, 0)], [(8, 9), (9, 1), (10, 0), (12, 0), (13, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3), (11, 0), (9, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(11, 0), (12, 0), (9, 0)]),
        ("sm_103", [(10, 3), (11, 0)], [(10, 0)]),
        ("compute_80", [], [(8, 0), (9, 0)]),
        ("sm_", [], [(8, 0)]),
    ],
)
def test_a_target_runs_on(target: str, runs: list[tuple[int, int]], refused: list[tuple[int, int]]) -> None:
    assert [capability for capability in runs if not runs_on(target, capability)] == []
    assert [capability for capability in refused if runs_on(target, capability)] == []


def test_generations_have_what_the_ones_before_them_have() -> None:
    for older, newer in pairwise(GENERATIONS):
        for name in (name for name in vars(older) if name.startswith("has_")):
            assert getattr(newer, name) or not getattr(older, name), name


@pytest.mark.parametrize("arch", all_specs(), ids=lambda arch: arch.name)
def test_the_kernels_of_a_device_load_on_it(arch: ArchSpec) -> None:
    assert arch.runs(arch.generation.target)
    assert arch.runs("sm_80")
    assert arch.has_wgmma == arch.has_tma == arch.has_clusters == arch.has_dependent_launches == (arch is SM_90A)


def test_conversions_of_fp8_are_there_from_8_9_on() -> None:
    assert [SM_86.has_fp8_conversions, SM_89.has_fp8_conversions, SM_120.has_fp8_conversions] == [False, True, True]
    assert generation_for((13, 0)).target == "sm_89"


def test_nothing_asks_a_device_for_its_name_or_capability() -> None:
    """Kernels are chosen by what a device has and loads."""
    asks = re.compile(r"""arch\.name\s*(==|!=)\s*["S]|\.name\s*(==|!=)\s*SM_|compute_capability\s*(>=|<=|==|>|<)""")
    package = Path(lowdnn.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in sorted(package.rglob("*.py"))
        if "arch" not in path.relative_to(package).parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if asks.search(line)
    ]
    assert found == []


def test_engines_name_no_architecture() -> None:
    """Targets stand once, in ``arch/targets.py``, by what the kernels for them use; names of kernels are only names."""
    package = Path(lowdnn.__file__).parent
    found = [
        f"{path.relative_to(package)}:{node.lineno}: {named}"
        for path in sorted((package / "engines").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for named in _named_by(node)
        if re.fullmatch(r"(sm|compute)_\d+[af]?", named, re.IGNORECASE)
    ]
    assert found == []


def _named_by(node: ast.AST) -> Iterator[str]:
    """The text of a literal, or the names of a reference or an import."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            yield name
