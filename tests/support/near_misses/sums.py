"""Reductions and pooling of whole images: patterns of ``reduction_pattern`` and ``resample_reduction``."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.enums import DataType, NanPropagation, PointwiseMode, ReduceTensorOp, ResampleMode
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.resample import Resample
from tests.support.near_misses.pattern import Known, Sketch, taken_by

_FLOAT, _HALF = DataType.FLOAT, DataType.HALF
_MODES, _ADD = PointwiseMode, ReduceTensorOp.ADD
_DIMS, _ROWS, _COLUMNS = (3, 4, 5), (3, 4, 1), (1, 1, 5)
_IMAGE = (2, 3, 4, 2)


def total(sketch: Sketch) -> None:
    """Operations on both sides, and one whose result is stored before."""
    x, scale = sketch.tensor(_DIMS, _HALF, name="x"), sketch.tensor(_COLUMNS, _FLOAT, name="scale")
    product = sketch.pointwise(_MODES.MUL, x, scale, store=_FLOAT)
    y = sketch.reduction(_ADD, sketch.pointwise(_MODES.RELU_FWD, product), (2,))
    sketch.pointwise(_MODES.ADD, y, sketch.tensor(_ROWS, _HALF, name="bias"), store=_FLOAT)


def bare_total(sketch: Sketch) -> None:
    sketch.reduction(_ADD, sketch.tensor(_DIMS, _FLOAT, name="x"), (0, 2), store=_FLOAT)


def largest(sketch: Sketch) -> None:
    """The largest of columns, with a sibling that reads the same tensor."""
    x = sketch.tensor(_DIMS, _FLOAT, name="x")
    y = sketch.reduction(ReduceTensorOp.MAX, sketch.pointwise(_MODES.NEG, x), (0, 1))
    sketch.pointwise(_MODES.IDENTITY, x, store=_HALF)
    sketch.pointwise(_MODES.MUL, y, sketch.value(0.5, rank=3), store=_FLOAT)


def average_of_indices(sketch: Sketch) -> None:
    x = sketch.tensor(_DIMS, _FLOAT, name="x")
    place = sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _FLOAT, axis=2), x)
    y = sketch.reduction(ReduceTensorOp.AVG, sketch.pointwise(_MODES.MUL, place, x), (1,))
    sketch.pointwise(_MODES.SQRT, sketch.pointwise(_MODES.ABS, y), store=_FLOAT)


def factor_on_both_sides(sketch: Sketch) -> None:
    """A number of each row that is computed before the sum and read behind it."""
    factor = sketch.pointwise(_MODES.NEG, sketch.tensor(_ROWS, _FLOAT, name="factor"))
    product = sketch.pointwise(_MODES.MUL, sketch.tensor(_DIMS, _HALF, name="x"), factor)
    sketch.pointwise(_MODES.ADD, sketch.reduction(_ADD, product, (2,)), factor, store=_FLOAT)


def statistics(sketch: Sketch) -> None:
    x = sketch.tensor(_IMAGE, _HALF, name="x")
    sketch.gen_stats(sketch.pointwise(_MODES.ADD, x, sketch.tensor((1, 3, 1, 1), _FLOAT, name="bias")))


def _geometry(mode: ResampleMode, rows: int = 4, pad: int = 0) -> Resample:
    """Windows of so many rows, one behind the other; by default one over a whole image."""
    return Resample(2, (rows, 2), (rows, 1), (pad, 0), (pad, 0), mode, _FLOAT, NanPropagation.PROPAGATE_NAN)


def average_pool(sketch: Sketch) -> None:
    x = sketch.pointwise(_MODES.NEG, sketch.tensor(_IMAGE, _HALF, name="x"))
    y = sketch.resample(x, _geometry(ResampleMode.AVGPOOL_EXCLUDE_PADDING))
    sketch.pointwise(_MODES.MUL, y, sketch.value(0.5), store=_FLOAT)


def largest_pool(sketch: Sketch) -> None:
    y = sketch.resample(sketch.tensor(_IMAGE, _FLOAT, name="x"), _geometry(ResampleMode.MAXPOOL))
    sketch.pointwise(_MODES.ADD, y, sketch.tensor((2, 3, 1, 1), _FLOAT, name="bias"), store=_FLOAT)


def pool_of_halves(sketch: Sketch) -> None:
    """Two windows in an image."""
    y = sketch.resample(sketch.tensor(_IMAGE, _FLOAT, name="x"), _geometry(ResampleMode.AVGPOOL_INCLUDE_PADDING, 2))
    sketch.pointwise(_MODES.NEG, y, store=_FLOAT)


def padded_pool(sketch: Sketch) -> None:
    """One window, which leaves the image."""
    geometry = _geometry(ResampleMode.AVGPOOL_INCLUDE_PADDING, 6, 1)
    sketch.pointwise(_MODES.NEG, sketch.resample(sketch.tensor(_IMAGE, _FLOAT, name="x"), geometry), store=_FLOAT)


def average_pool_gradient(sketch: Sketch) -> None:
    geometry = _geometry(ResampleMode.AVGPOOL_INCLUDE_PADDING)
    dx = sketch.resample_gradient(sketch.tensor((2, 3, 1, 1), _FLOAT, name="dy"), _IMAGE, geometry)
    sketch.pointwise(_MODES.ADD, dx, sketch.tensor(_IMAGE, _HALF, name="other"), store=_FLOAT)


PATTERNS: Mapping[str, Known] = {
    **taken_by("reduction", total, bare_total, largest, average_of_indices, statistics),
    **taken_by("resample_reduction", average_pool, largest_pool, average_pool_gradient),
    **taken_by("resample", pool_of_halves, padded_pool),
    **taken_by("composite", factor_on_both_sides),
}
