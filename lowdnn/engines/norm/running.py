"""The running statistics of batch normalisation as pointwise operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor


def carried_on(
    value: Tensor, factor: Tensor, before: Tensor, after: Tensor, compute_type: DataType, uids: Iterator[int]
) -> tuple[PointwiseOperation, ...]:
    """The operations of after = (1 - factor) * before + factor * value.

    Each operation rounds one of the two terms or their sum: with a factor of 1, a large ``before`` does not absorb a
    small ``value``. New tensors are of ``compute_type`` and take the next of ``uids``.
    """

    def virtual(like: Tensor) -> Tensor:
        return replace(like, uid=next(uids), data_type=compute_type, alignment_bytes=16, is_virtual=True)

    kept, share, rest = virtual(value), virtual(value), virtual(replace(factor, is_by_value=False, constant_value=None))
    one = replace(rest, uid=next(uids), is_virtual=False, constant_value=1.0)
    terms = (
        (PointwiseMode.SUB, one, factor, rest),
        (PointwiseMode.MUL, before, rest, kept),
        (PointwiseMode.MUL, value, factor, share),
        (PointwiseMode.ADD, kept, share, after),
    )
    return tuple(PointwiseOperation(Pointwise(mode, compute_type), x=x, b=b, y=y) for mode, x, b, y in terms)
