"""Softmax and its gradient: patterns of ``row_pattern`` and ``softmax_pattern``."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from tests.support.near_misses.pattern import Known, Sketch, taken_by

_FLOAT, _HALF = DataType.FLOAT, DataType.HALF
_DIMS, _ROWS, _COLUMNS = (3, 4, 5), (3, 4, 1), (1, 1, 5)


def gradient(sketch: Sketch) -> None:
    """y * (dy - sum of dy * y), with operations before dy and behind dx."""
    y, given, bias = (
        sketch.tensor(_DIMS, _FLOAT, name="y"),
        sketch.tensor(_DIMS, _HALF),
        sketch.tensor(_COLUMNS, _FLOAT),
    )
    dy = sketch.pointwise(PointwiseMode.ADD, given, bias)
    dx = sketch.softmax_backward(dy, y, (2,))
    sketch.pointwise(PointwiseMode.MUL, dx, sketch.value(0.5, rank=3), store=_HALF)


def bare_gradient(sketch: Sketch) -> None:
    y, dy = (sketch.tensor(_DIMS, _FLOAT, name=name) for name in ("y", "dy"))
    sketch.softmax_backward(dy, y, (2,), store=_FLOAT)


def log_gradient(sketch: Sketch) -> None:
    """dy - exp(y) * sum of dy, with operations before dy and behind dx."""
    y, given = (sketch.tensor(_DIMS, _FLOAT, name=name) for name in ("y", "given"))
    dy = sketch.pointwise(PointwiseMode.NEG, given)
    dx = sketch.softmax_backward(dy, y, (2,), is_log=True)
    sketch.pointwise(PointwiseMode.ADD, dx, sketch.tensor(_DIMS, _HALF), store=_FLOAT)


def bare_log_gradient(sketch: Sketch) -> None:
    y, dy = (sketch.tensor(_DIMS, _FLOAT, name=name) for name in ("y", "dy"))
    sketch.softmax_backward(dy, y, (1, 2), is_log=True, store=_FLOAT)


def softmax(sketch: Sketch) -> None:
    """A softmax with statistics and a sink, and operations on both sides."""
    x, scale = sketch.tensor(_DIMS, _HALF, name="x"), sketch.value(0.5, rank=3)
    scaled = sketch.pointwise(PointwiseMode.MUL, x, scale)
    sink = sketch.tensor((1, 4, 1), _FLOAT, name="sink")
    y = sketch.softmax(scaled, (2,), sink=sink, statistics=_FLOAT)
    sketch.pointwise(PointwiseMode.MUL, y, sketch.tensor(_COLUMNS, _FLOAT), store=_HALF)


def log_softmax(sketch: Sketch) -> None:
    x = sketch.tensor(_DIMS, _FLOAT, name="x")
    y = sketch.softmax(x, (2,), is_log=True, statistics=_FLOAT, names=("stats",), stats_log2=True)
    sketch.pointwise(PointwiseMode.NEG, y, store=_FLOAT)


def softmax_by_hand(sketch: Sketch) -> None:
    """exp(x) and its sum, which no row of a kernel has."""
    x = sketch.tensor(_DIMS, _FLOAT, name="x")
    shares = sketch.pointwise(PointwiseMode.EXP, x)
    total = sketch.reduction(ReduceTensorOp.ADD, shares, (2,))
    sketch.pointwise(PointwiseMode.DIV, shares, total, store=_FLOAT)


PATTERNS: Mapping[str, Known] = {
    **taken_by("softmax", gradient, bare_gradient, log_gradient, bare_log_gradient, softmax, log_softmax),
    **taken_by("composite", softmax_by_hand),
}
