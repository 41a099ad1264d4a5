"""Graphs that are almost attention. All extents are equal, so that only the pattern tells them from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.tensor import Tensor

DIMS = (4, 4, 4, 4)
Step = Callable[[CaseBuilder, Tensor], Tensor]


def same(_: CaseBuilder, x: Tensor) -> Tensor:
    return x


def match(
    *,
    keys: Step = lambda builder, k: builder.transpose(k, (0, 1, 3, 2)),
    before: Step = same,
    axis: int = 3,
    masked_is_nan: bool = False,
    behind: Callable[[CaseBuilder, Tensor, Tensor], object] = lambda *_: None,
) -> Attention | str:
    """before: the steps of the scores.  behind: takes the weights and the output, which is virtual."""
    builder = CaseBuilder()
    q, k, v = (builder.tensor(DIMS, DataType.HALF) for _ in range(3))
    scores = before(builder, builder.matmul(q, keys(builder, k)))
    weights = builder.softmax(scores, (axis,), masked_is_nan=masked_is_nan)
    output = builder.matmul(builder.pointwise(PointwiseMode.IDENTITY, weights, virtual=DataType.HALF), v)
    behind(builder, weights, output)
    builder.pointwise(PointwiseMode.IDENTITY, output, store=DataType.HALF)
    return match_attention(builder.graph())


def stored(builder: CaseBuilder, x: Tensor) -> Tensor:
    builder.pointwise(PointwiseMode.IDENTITY, x, store=DataType.HALF)
    return x


def loaded(builder: CaseBuilder, container: Tensor) -> Tensor:
    table, lengths = (builder.tensor(dims, DataType.INT32) for dims in ((4, 1, 1, 1), (4, 1, 1, 1)))
    return stored(builder, builder.paged_cache_load(container, table, lengths, 4))


def masked_twice(builder: CaseBuilder, scores: Tensor) -> Tensor:
    for _ in range(2):
        scores = builder.block_mask(scores, builder.tensor((4, 4, 1, 1), DataType.UINT8))
    return scores


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (lambda builder, k: builder.transpose(k, (1, 0, 3, 2)), "first product's b: expected a graph input"),
        (lambda builder, k: stored(builder, builder.transpose(k, (0, 1, 3, 2))), "first product's b: expected"),
        (lambda builder, k: builder.transpose(loaded(builder, k), (0, 1, 3, 2)), "first product's b: expected"),
    ],
    ids=["other-axes", "read-again", "pages-read-again"],
)
def test_keys_that_are_not_read_as_they_lie(keys: Step, reason: str) -> None:
    assert isinstance(match(), Attention)
    assert reason in str(match(keys=keys))


def test_another_axis_of_the_softmax() -> None:
    assert "expected plain, over the last axis, got (2,)" in str(match(axis=2))


def test_rows_without_weights_that_are_nan() -> None:
    assert "softmax: expected 0 for a masked row, got NaN" in str(match(masked_is_nan=True))


def test_a_second_mask_of_tiles() -> None:
    assert "expected scores that follow from the first product's" in str(match(before=masked_twice))


def test_scores_and_weights_that_are_read_behind_the_output() -> None:
    def behind(builder: CaseBuilder, weights: Tensor, output: Tensor) -> None:
        builder.pointwise(PointwiseMode.ADD, output, weights, store=DataType.FLOAT)

    assert "expected none behind the second product that read scores or weights" in str(match(behind=behind))


@pytest.mark.parametrize("is_of_weights", [True, False])
@pytest.mark.parametrize(
    ("operator", "axes", "is_taken"),
    [
        (ReduceTensorOp.AMAX, (0, 1, 2, 3), True),
        (ReduceTensorOp.MAX, (0, 1, 2, 3), False),
        (ReduceTensorOp.AMAX, (3,), False),
    ],
)
def test_largest_magnitudes(
    operator: ReduceTensorOp, axes: tuple[int, ...], is_taken: bool, is_of_weights: bool
) -> None:
    def behind(builder: CaseBuilder, weights: Tensor, output: Tensor) -> None:
        builder.reduction(operator, weights if is_of_weights else output, axes, store=DataType.FLOAT)

    found = match(behind=behind)
    assert isinstance(found, Attention) == is_taken
    assert is_taken or "expected no reductions but AMAX of everything" in str(found)


@pytest.mark.parametrize(("shift", "kind"), [(0, DataType.INT32), (1, DataType.INT32), (0, DataType.HALF)])
def test_lengths_of_keys(shift: int, kind: DataType) -> None:
    """Indices that are moved, or kept in a type that rounds them, are no places of keys."""

    def before(builder: CaseBuilder, scores: Tensor) -> Tensor:
        index = builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=3), scores, virtual=kind)
        if shift:
            moved = builder.constant(4, DataType.INT32, shift)
            index = builder.pointwise(PointwiseMode.ADD, index, moved, compute_type=DataType.INT32)
        lengths = builder.tensor((4, 1, 1, 1), DataType.INT32)
        compared = {"compute_type": DataType.INT32, "virtual": DataType.BOOLEAN}
        seen = builder.pointwise(PointwiseMode.CMP_LT, index, lengths, **compared)
        nothing = builder.constant(4, DataType.FLOAT, float("-inf"))
        return builder.pointwise(PointwiseMode.BINARY_SELECT, scores, nothing, seen)

    found = match(before=before)
    assert isinstance(found, Attention)
    assert (found.band.lengths is not None) == (shift == 0 and kind is DataType.INT32)
