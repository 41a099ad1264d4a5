"""Pooling and interpolation through descriptors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PaddingMode, ResampleMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import AttributeTypeError, OutOfBoundError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType
X, Y = (1, 2, 3, 4), (1, 2, 6, 8)
HALF = Fraction(1, 2)


def upsampling(*others: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    """Bilinear, to twice the extents."""
    return made(
        DescriptorType.RESAMPLE,
        (N.RESAMPLE_MODE, T.RESAMPLE_MODE, ResampleMode.BILINEAR),
        (N.RESAMPLE_PADDING_MODE, T.PADDING_MODE, PaddingMode.EDGE_VAL_PAD),
        (N.RESAMPLE_SPATIAL_DIMS, T.INT64, 2),
        (N.RESAMPLE_WINDOW_DIMS, T.INT64, (2, 2)),
        (N.RESAMPLE_STRIDES, T.FRACTION, (HALF, HALF)),
        (N.RESAMPLE_PRE_PADDINGS, T.FRACTION, (HALF, HALF)),
        (N.RESAMPLE_POST_PADDINGS, T.FRACTION, (Fraction(1), 1)),
        *others,
    )


def packed(uid: int, dims: tuple[int, ...]) -> Descriptor:
    return tensor(uid, dims, packed_strides(dims))


def forward() -> Descriptor:
    return made(
        DescriptorType.OPERATION_RESAMPLE_FWD,
        (N.OPERATION_RESAMPLE_FWD_DESC, T.BACKEND_DESCRIPTOR, upsampling()),
        (N.OPERATION_RESAMPLE_FWD_XDESC, T.BACKEND_DESCRIPTOR, packed(1, X)),
        (N.OPERATION_RESAMPLE_FWD_YDESC, T.BACKEND_DESCRIPTOR, packed(2, Y)),
        (N.OPERATION_RESAMPLE_FWD_ALPHA, T.DOUBLE, 1.0),
        (N.OPERATION_RESAMPLE_FWD_BETA, T.DOUBLE, 0.0),
    )


def backward() -> Descriptor:
    return made(
        DescriptorType.OPERATION_RESAMPLE_BWD,
        (N.OPERATION_RESAMPLE_BWD_DESC, T.BACKEND_DESCRIPTOR, upsampling()),
        (N.OPERATION_RESAMPLE_BWD_DYDESC, T.BACKEND_DESCRIPTOR, packed(1, Y)),
        (N.OPERATION_RESAMPLE_BWD_DXDESC, T.BACKEND_DESCRIPTOR, packed(2, X)),
    )


def run(handle: Handle, operation: Descriptor, given: Any, dims: tuple[int, ...]) -> Any:
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    buffers = [upload(handle.runtime, values.ravel()) for values in (given, np.zeros(dims, np.float32))]
    execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in enumerate(buffers, 1)}))
    return download(buffers[1], np.dtype(np.float32)).reshape(dims)


def test_upsampling_and_its_gradient(handle: Handle) -> None:
    """Output o lies at o / 2, so that even ones are pixels."""
    x = np.arange(24, dtype=np.float32).reshape(X)
    y = run(handle, forward(), x, Y)
    np.testing.assert_array_equal(y[:, :, ::2, ::2], x)
    np.testing.assert_array_equal(y[:, :, 1:5:2, ::2], (x[:, :, :-1] + x[:, :, 1:]) / 2)
    np.testing.assert_array_equal(y[:, :, 5], y[:, :, 4])
    dy = np.random.default_rng(1).integers(-4, 5, Y).astype(np.float32)
    dx = run(handle, backward(), dy, X)
    assert float((dx * x).sum()) == float((dy * y).sum())


def test_rationals_are_read_back_in_both_types() -> None:
    resample = upsampling()
    assert resample.get_attribute(N.RESAMPLE_WINDOW_DIMS, T.FRACTION) == [Fraction(2), Fraction(2)]
    assert resample.get_attribute(N.RESAMPLE_POST_PADDINGS, T.INT64) == [1, 1]
    with pytest.raises(AttributeTypeError, match=r"RESAMPLE_STRIDES: expected another type for what is not whole"):
        resample.get_attribute(N.RESAMPLE_STRIDES, T.INT64)
    assert resample.get_attribute(N.RESAMPLE_COMP_TYPE, T.DATA_TYPE) == [DataType.FLOAT]


def test_rationals_are_checked() -> None:
    resample = create(DescriptorType.RESAMPLE)
    with pytest.raises(AttributeTypeError, match=r"\[0\]: expected Fraction or int for FRACTION, got float 0\.5"):
        resample.set_attribute(N.RESAMPLE_STRIDES, T.FRACTION, (0.5,))
    with pytest.raises(OutOfBoundError, match="64 bits"):
        resample.set_attribute(N.RESAMPLE_STRIDES, T.FRACTION, (Fraction(1, 2**63 + 1),))


def test_graphs_with_fractions_have_a_json_form() -> None:
    graph = OperationGraph([forward().value])
    again = OperationGraph.from_json(graph.to_json())
    assert (again.operations, again.key) == (graph.operations, graph.key)
