"""The figure and the table of speed are drawn from rows, and those of the guide are up to date."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from lowdnn.bench.table import Row
from tools.bench import figure

_CLASS = "GEMM fp8, TF32, int8"


def row(ratio: float, class_: str = _CLASS, suite: str = "gemm", error: str = "") -> Row:
    times = {"us": 10.0, "floor_us": 5.0, "peer": "cublas", "peer_us": 10 * ratio, "ratio": ratio, "spread": 0.0}
    names = {"case": "matmul", "network": "", "dtype": "INT8", "engine": "e", "knobs": "", "error": error}
    return Row(suite=suite, class_=class_, **names, **times, gpu="NVIDIA H200", driver="580", commit="c")  # type: ignore[arg-type]


def test_guide_is_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["figure", "--check"])
    assert figure.main() == 0, capsys.readouterr().out


def test_rows_of_a_class_have_one_line() -> None:
    rows = [row(0.5), row(2.0), row(4.0, error="out of memory"), row(1.0, "execute", "host"), row(9.0, "no such class")]
    (found,) = figure.by_class(rows)
    assert (found.name, found.cases, found.mean, found.worst, found.peers) == (_CLASS, 2, 1.0, 0.5, ("cublas",))
    assert figure.table([found]).splitlines()[-1] == f"| {_CLASS} | 2 | 1.00 | 0.50 | cublas |"


def test_drawing_has_a_dot_for_each_class() -> None:
    classes = [*figure.by_class([row(2.0), row(8.0), row(3.0, "forward fp8", "attention")])]
    drawn = ElementTree.fromstring(figure.drawing(classes, "a < b"))
    dots = drawn.findall("{http://www.w3.org/2000/svg}circle")
    texts = [text.text for text in drawn.findall("{http://www.w3.org/2000/svg}text")]
    assert len(dots) == 2
    assert {"a < b", "4.00", "attention forward fp8", "3.00"} <= set(texts)
    assert float(dots[0].attrib["cx"]) > float(dots[1].attrib["cx"])
