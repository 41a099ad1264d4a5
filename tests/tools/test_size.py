"""Checks of sizes and of layers fail on trees that break their rules; the census counts what it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import test_layers as layers
from tools.checks import size
from tools.checks.census import conditions, literals

_LONG_FILE = "x = 1\n" * 501
_LONG_BODY = "\n".join(["    x = 1"] * 61)
_LONG_SIGNATURE = "\n".join(f"    x{number}: int," for number in range(61))


def test_this_tree_holds_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert size.main(Path(__file__).resolve().parents[2]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "text", "fault"),
    [
        ("lowdnn/a.py", _LONG_FILE, "lowdnn/a.py: expected at most 500 lines, got 501"),
        ("tools/a/b.py", _LONG_FILE, "tools/a/b.py: expected at most 500 lines, got 501"),
        ("tests/a.py", _LONG_FILE, "tests/a.py: expected at most 500 lines, got 501"),
        ("lowdnn/engines/enums.py", _LONG_FILE, "lowdnn/engines/enums.py: expected at most 500 lines, got 501"),
        ("lowdnn/a.cu", "\n" * 501, "lowdnn/a.cu: expected at most 500 lines, got 501"),
        ("lowdnn/a.cuh", "\n" * 501, "lowdnn/a.cuh: expected at most 500 lines, got 501"),
        ("lowdnn/a.py", f"class A:\n  def f():\n{_LONG_BODY}\n", "a.py:2 f: expected at most 60 lines, got 61"),
        ("lowdnn/a.py", f"async def f():\n{_LONG_BODY}\n", "a.py:1 f: expected at most 60 lines, got 61"),
        (
            "lowdnn/a.cu",
            f'extern "C" __global__ void __launch_bounds__(f(32))\nname(int x) {{{{\n{_LONG_BODY}\n}}\n}}\n',
            "a.cu:2 name: expected at most 60 lines, got 62",
        ),
    ],
)
def test_what_is_too_long(
    place: str, text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path, place, text)
    assert size.main(tmp_path) == 1
    assert fault in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("lowdnn/a.py", "\n" * 500),
        ("lowdnn/enums.py", _LONG_FILE),
        ("lowdnn/a.py", f"def f(\n{_LONG_SIGNATURE}\n) -> None:\n    return\n"),
        ("lowdnn/a.py", f'def f() -> None:\n    """{_LONG_BODY}"""\n'),
        ("lowdnn/a.cu", f"struct A {{\n{_LONG_BODY}\n}};\nvoid f(int x) {{\n#if A\n// {{\n#else\n#endif\n}}\n"),
    ],
)
def test_what_is_not(place: str, text: str, tmp_path: Path) -> None:
    _write(tmp_path, place, text)
    assert size.main(tmp_path) == 0


def test_layers_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "PACKAGE", tmp_path)
    _write(tmp_path, "engines/a.py", "from lowdnn.graph import graph\nfrom lowdnn import status\n")
    layers.test_imports_go_down(layers.LIBRARY)
    _write(tmp_path, "graph/a.py", "def f():\n    from lowdnn.engines import registry\n")
    with pytest.raises(AssertionError, match=r"lowdnn.graph.a imports lowdnn.engines"):
        layers.test_imports_go_down(layers.LIBRARY)
    _write(tmp_path, "somewhere/a.py", "")
    with pytest.raises(AssertionError, match="somewhere"):
        layers.test_imports_go_down(layers.LIBRARY)
    _write(tmp_path, "engines/gemm/a.py", "from lowdnn.engines.composite import composite\n")
    with pytest.raises(AssertionError, match=r"lowdnn.engines.gemm.a imports lowdnn.engines.composite"):
        layers.test_imports_go_down(layers.ENGINES)


def test_literals() -> None:
    text = """
A = 3 * 2
B: float = -0.7e-6
PAIRS = ((5, 6), (7, 8))
TABLE = ((5, 6), (7, 8), (9, 10))
class C:
    D = {1: 11, 2: 12, 4: 13}
def f(x=14, y=0.25, z=65536):
    return x + 1 + True
"""
    found = [*literals(ast.parse(text))]
    assert {number for number, is_row, _ in found if is_row} == {5, 6, 7, 9, 10, 11, 12, 13}
    assert sorted(number for number, is_row, _ in found if not is_row) == [0.7e-6, 3, 5, 6, 7, 14]
    assert [number for number, _, is_constant in found if not is_constant] == [14]


def test_conditions() -> None:
    text = "#if IS_FP8\n#elif  HAS_X && !Y\n#else\n#endif\n# ifdef __CUDA_ARCH__\n#if MN_MAJOR_TYPES\n#ifndef TYPED\n"
    assert [name for name, asks in conditions(text) if not asks] == ["HAS_X && !Y", "TYPED"]
    assert len([*conditions(text)]) == 5


def _write(root: Path, place: str, text: str) -> None:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
