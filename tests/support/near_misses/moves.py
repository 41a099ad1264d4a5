"""Moves of elements, pointwise operations and random numbers: patterns of ``transform.matching``, ``pointwise`` and
engines of one operation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowdnn.enums import DataType, PointwiseMode, ReshapeMode, RngDistribution
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.ragged import RaggedStore
from lowdnn.ops.rng import Rng
from tests.support.near_misses.pattern import Known, Sketch, taken_by

_FLOAT, _HALF, _INT32 = DataType.FLOAT, DataType.HALF, DataType.INT32
_MODES = PointwiseMode
_DIMS = (3, 4, 6)


def chain_of_moves(sketch: Sketch) -> None:
    """Transposed, converted, sliced and reshaped; one value on the way is stored."""
    turned = sketch.transpose(sketch.tensor(_DIMS, _HALF, name="x"), (2, 0, 1))
    wide = sketch.pointwise(_MODES.IDENTITY, turned, virtual=_FLOAT, store=None)
    part = sketch.slice(wide, (1, 0, 0), (6, 3, 4), (2, 1, 1), store=_FLOAT)
    sketch.reshape(part, (3, 12), store=_FLOAT)


def reshaped_twice(sketch: Sketch) -> None:
    """Over axes that no strides join, so that it lies in the workspace between."""
    turned = sketch.transpose(sketch.tensor(_DIMS, _FLOAT, name="x"), (1, 0, 2))
    flat = sketch.reshape(turned, (12, 6))
    sketch.transpose(sketch.reshape(flat, (6, 12)), (1, 0), store=_FLOAT)


def reshaped_last(sketch: Sketch) -> None:
    """A reshaped output that nothing moves further."""
    turned = sketch.transpose(sketch.tensor(_DIMS, _FLOAT, name="x"), (1, 0, 2))
    sketch.reshape(turned, (12, 6), store=_FLOAT)


def moved_concatenation(sketch: Sketch) -> None:
    joined = sketch.concat([sketch.tensor(_DIMS, _FLOAT, name=name) for name in ("first", "second")], 2)
    sketch.transpose(joined, (1, 0, 2), store=_FLOAT)


def view_of_memory(sketch: Sketch) -> None:
    x = sketch.tensor(_DIMS, _HALF, name="x")
    sketch.reshape(x, (3, 6, 4), mode=ReshapeMode.VIEW_ONLY, strides=(24, 1, 6), store=_HALF)


def concatenation(sketch: Sketch) -> None:
    """Concatenates an input and a tensor that is moved before."""
    parts = [sketch.tensor(_DIMS, _FLOAT, name="first")]
    parts.append(sketch.transpose(sketch.tensor((4, 3, 6), _FLOAT, name="second"), (1, 0, 2)))
    sketch.concat(parts, 2, store=_FLOAT)


def conversion(sketch: Sketch) -> None:
    sketch.pointwise(_MODES.IDENTITY, sketch.tensor(_DIMS, _HALF, name="x"), store=_FLOAT)


def pointwise(sketch: Sketch) -> None:
    """With factors, a selection, an index, a value that is stored on the way, and random numbers."""
    x, b = sketch.tensor(_DIMS, _HALF, name="x"), sketch.tensor((1, 1, 6), _FLOAT, name="b")
    product = sketch.pointwise(_MODES.MUL, x, b, alpha1=0.5, virtual=_HALF)
    place = sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _INT32, axis=1), product)
    limit = sketch.constant(3, _INT32, 2)
    seen = sketch.pointwise(_MODES.CMP_LE, place, limit, compute_type=_INT32, virtual=DataType.BOOLEAN)
    shifted = sketch.pointwise(_MODES.SUB, product, sketch.value(0.5, rank=3), store=_FLOAT)
    chosen = sketch.pointwise(_MODES.BINARY_SELECT, shifted, product, seen)
    seed = sketch.holding(np.full((1, 1, 1), 5), DataType.INT64, name="seed")
    kept = sketch.rng(Rng(RngDistribution.BERNOULLI, probability=0.5), _DIMS, seed=seed)
    clipped = Pointwise(_MODES.RELU_FWD, _FLOAT, relu_upper_clip=1.5, relu_lower_clip_slope=0.25)
    sketch.pointwise(clipped, sketch.pointwise(_MODES.MUL, chosen, kept), store=_FLOAT)


def activation_gradient(sketch: Sketch) -> None:
    dy, x = (sketch.tensor(_DIMS, _FLOAT, name=name) for name in ("dy", "x"))
    dx = sketch.pointwise(_MODES.SIGMOID_BWD, dy, x)
    sketch.pointwise(_MODES.DIV, dx, sketch.tensor((3, 1, 1), _FLOAT, name="divisor"), store=_FLOAT)


def rotation(sketch: Sketch) -> None:
    x, freqs = sketch.tensor((2, 2, 3, 8), _HALF, name="x"), sketch.tensor((3, 1, 1, 4), _FLOAT, name="freqs")
    sketch.rope(x, freqs, output_scale=0.5, rope_dim=4)


def quantisation(sketch: Sketch) -> None:
    sketch.block_scale_quantize(sketch.tensor((4, 32), _FLOAT, name="x"), 16, 1)


def dequantisation(sketch: Sketch) -> None:
    x = sketch.tensor((4, 32), DataType.FP8_E4M3, name="x")
    scale = sketch.holding(np.reshape([0.5, 1, 2, 4, 1, 2, 0.5, 1], (4, 2)), DataType.FP8_E8M0, name="scale")
    sketch.block_scale_dequantize(x, scale, 16, store=_FLOAT)


def band_matrix(sketch: Sketch) -> None:
    x = sketch.tensor((2, 3, 5), _FLOAT, name="x")
    sketch.expand_band_matrix(x, 5, (1, 1), axis=1, pad=-1.0, store=_FLOAT)


def pages(sketch: Sketch) -> None:
    container = sketch.tensor((6, 2, 2, 8), _HALF, name="container")
    table = sketch.holding(np.arange(6).reshape(2, 1, 3, 1)[::-1], _INT32, name="table")
    lengths = sketch.holding(np.reshape([3, 6], (2, 1, 1, 1)), _INT32, name="lengths")
    sketch.paged_cache_load(container, table, lengths, 6, store=_HALF)


def packed_rows(sketch: Sketch) -> None:
    """Loaded, changed and stored again."""
    offsets = sketch.holding(np.reshape([0, 3 * 16, 5 * 16], (3, 1, 1, 1)), _INT32, name="offsets")
    packed = {"dims": (1, 2, 8, 8), "data_type": _HALF, "strides": (128, 8, 16, 1)}
    padded = sketch.ragged_load(sketch.tensor(**packed, name="x"), offsets, 4)
    negated = sketch.pointwise(_MODES.NEG, padded, virtual=_HALF)
    sketch.add(RaggedStore(negated, sketch.tensor(**packed, name="y"), offsets))


def packed_bits(sketch: Sketch) -> None:
    mask = sketch.pointwise(
        _MODES.CMP_GT, sketch.tensor(_DIMS, _FLOAT, name="x"), sketch.value(0.0, rank=3), virtual=DataType.BOOLEAN
    )
    sketch.pack_bits(mask)


PATTERNS: Mapping[str, Known] = {
    **taken_by("transform", chain_of_moves, reshaped_twice, reshaped_last, view_of_memory, concatenation),
    **taken_by("pointwise", conversion, pointwise, activation_gradient),
    **taken_by("rope", rotation),
    **taken_by("block_scale", quantisation, dequantisation),
    **taken_by("band_matrix", band_matrix),
    **taken_by("paged_cache", pages),
    **taken_by("composite", moved_concatenation, packed_rows, packed_bits),
}
