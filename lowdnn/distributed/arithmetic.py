"""Reductions over ranks on the host, in rank order: ((x0 op x1) op x2) op ... for each element.

16-bit types are reduced in fp32 and rounded once; other types in themselves, integers with wrap-around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.enums import DataType

_WIDENED = (DataType.HALF, DataType.BFLOAT16)
_FUNCTIONS = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


def reduced(parts: Sequence[NDArray[np.uint8]], data_type: DataType, op: ReduceOp) -> NDArray[np.uint8]:
    """The bytes of the reduction of ``parts``, the bytes of equally many elements of ``data_type`` from each rank."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = _values(parts[0], data_type)
        for part in parts[1:]:
            total = _FUNCTIONS[op](total, _values(part, data_type))
        if op is ReduceOp.AVG:
            total = total / total.dtype.type(len(parts))
    storage = dtypes.info(data_type).storage
    stored = dtypes.from_float64(total, data_type) if data_type in _WIDENED else np.asarray(total, storage)
    return np.ascontiguousarray(stored).view(np.uint8)


def _values(part: NDArray[np.uint8], data_type: DataType) -> NDArray[Any]:
    stored = part.view(dtypes.info(data_type).storage)
    return dtypes.to_float64(stored, data_type).astype(np.float32) if data_type in _WIDENED else stored
