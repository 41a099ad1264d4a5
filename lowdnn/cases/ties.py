"""Integers that lie next to a tie: rounding on the way to them may give them another value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases.oracle import Step
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.pointwise import PointwiseOperation


def steps_at_ties(graph: OperationGraph, written: Sequence[Step], share: float) -> dict[int, NDArray[np.float64]]:
    """The greatest difference of each element, by uid, of integers that a pointwise operation rounds from floats.

    written: the steps of ``graph``.  share: the error of a value before it is rounded, as a share of the greatest
    magnitude among those from which pointwise operations compute it: values may cancel out.
    """
    steps = {tensor.uid: (values, stored) for tensor, values, stored in written}
    sizes: dict[int, NDArray[np.float64]] = {}
    found: dict[int, NDArray[np.float64]] = {}
    for op in graph.operations:
        for tensor in outputs_of(op).values():
            values, stored = steps[tensor.uid]
            size = np.abs(values.astype(np.float64))
            if isinstance(op, PointwiseOperation):
                for operand in inputs_of(op).values():
                    size = np.maximum(size, sizes.get(operand.uid, 0.0))
                if _is_integer(tensor.data_type) and not _is_integer(op.compute_type):
                    found[tensor.uid] = _steps(values.astype(np.float64), share * size, stored, tensor.data_type)
            sizes[tensor.uid] = size
    return found


def _is_integer(data_type: DataType) -> bool:
    return dtypes.info(data_type).kind in (dtypes.Kind.SIGNED, dtypes.Kind.UNSIGNED)


def _steps(
    values: NDArray[np.float64], errors: NDArray[np.float64], stored: NDArray[Any], data_type: DataType
) -> NDArray[np.float64]:
    """The greatest difference from ``stored`` of integers to which values within ``errors`` of ``values`` round."""
    ends = (dtypes.from_float64(values + sign * errors, data_type).astype(np.float64) for sign in (-1, 1))
    below, above = (np.abs(end - stored.astype(np.float64)) for end in ends)
    return np.asarray(np.maximum(below, above))
