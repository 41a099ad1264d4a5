"""Reductions whose y has a part of an extent of x: neighbours along that axis are joined.

cudnn-frontend sums the gradients of keys and values so, where several heads of queries share one of theirs.
"""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, ReduceTensorOp
from lowdnn.status import ShapeMismatchError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType
X_DIMS, X_STRIDES = (2, 8, 6, 4), (192, 4, 32, 1)


def reduction(dims: tuple[int, ...], operator: ReduceTensorOp) -> Descriptor:
    """x (uid 1), whose heads lie behind the rows, into y (uid 2); not finalized."""
    strides = tuple(int(np.prod(dims[axis + 1 :])) for axis in range(len(dims)))
    arithmetic = made(
        D.REDUCTION,
        (N.REDUCTION_OPERATOR, T.REDUCTION_OPERATOR_TYPE, operator),
        (N.REDUCTION_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT),
    )
    described = create(D.OPERATION_REDUCTION)
    described.set_attribute(N.OPERATION_REDUCTION_DESC, T.BACKEND_DESCRIPTOR, arithmetic)
    described.set_attribute(N.OPERATION_REDUCTION_XDESC, T.BACKEND_DESCRIPTOR, tensor(1, X_DIMS, X_STRIDES))
    described.set_attribute(N.OPERATION_REDUCTION_YDESC, T.BACKEND_DESCRIPTOR, tensor(2, dims, strides))
    return described


@pytest.mark.parametrize("operator", [ReduceTensorOp.ADD, ReduceTensorOp.MAX, ReduceTensorOp.AVG])
@pytest.mark.parametrize("dims", [(2, 2, 6, 4), (2, 4, 3, 4), (1, 2, 6, 1), (2, 8, 2, 4)])
def test_neighbours_are_joined(handle: Handle, dims: tuple[int, ...], operator: ReduceTensorOp) -> None:
    described = reduction(dims, operator)
    described.finalize()
    graph = made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, (described,)),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    x = np.random.default_rng(5).integers(-8, 9, X_DIMS).astype(np.float32)
    groups = x.reshape(
        [size for source, target in zip(X_DIMS, dims, strict=True) for size in (target, source // target)]
    )
    join = {ReduceTensorOp.ADD: np.sum, ReduceTensorOp.MAX: np.max, ReduceTensorOp.AVG: np.mean}[operator]
    stored = upload(handle.runtime, np.ascontiguousarray(x.transpose(0, 2, 1, 3)))
    y = upload(handle.runtime, np.full(dims, np.nan, np.float32))
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    size = plan.get_attribute(N.EXECUTION_PLAN_WORKSPACE_SIZE, T.INT64)[0]
    room = upload(handle.runtime, np.zeros(max(size, 1), np.uint8))
    execute(handle, plan, variant_pack({1: stored.address, 2: y.address}, room.address))
    np.testing.assert_allclose(download(y, np.float32).reshape(dims), join(groups, axis=(1, 3, 5, 7)), rtol=1e-6)


@pytest.mark.parametrize("dims", [(2, 3, 6, 4), (2, 16, 6, 4), (2, 2, 5, 4)])
def test_extents_that_are_no_part(dims: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatchError, match="or a part of it"):
        reduction(dims, ReduceTensorOp.ADD).finalize()
