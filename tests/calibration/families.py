"""The families of calibration cases. Each is recorded, stored and checked by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.calibration.case import Case
from tests.calibration.cases import (
    approximate,
    atomic,
    barriers,
    bulk,
    cluster,
    compare,
    convert,
    im2col,
    integer,
    matrix,
    mma,
    rounding,
    special,
    tensor,
    warp,
    wgmma,
)

FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "convert": convert.cases,
    "rounding": rounding.cases,
    "approximate": approximate.cases,
    "compare": compare.cases,
    "integer": integer.cases,
    "warp": warp.cases,
    "atomic": atomic.cases,
    "special": special.cases,
    "matrix": matrix.cases,
    "mma": mma.cases,
    "wgmma": wgmma.cases,
    "barriers": barriers.cases,
    "bulk": bulk.cases,
    "tensor": tensor.cases,
    "im2col": im2col.cases,
    "cluster": cluster.cases,
}
