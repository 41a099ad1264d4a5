from __future__ import annotations

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.layouts import Layout, strides_of


@pytest.mark.parametrize(
    ("layout", "dims", "strides"),
    [
        (Layout.ROW_MAJOR, (2, 3, 4, 5), (60, 20, 5, 1)),
        (Layout.CHANNELS_LAST, (2, 3, 4, 5), (60, 1, 15, 3)),
        (Layout.CHANNELS_LAST, (2, 3), (3, 1)),
        (Layout.TRANSPOSED, (2, 3, 4), (12, 1, 3)),
        (Layout.PADDED, (2, 3, 4), (21, 7, 1)),
    ],
)
def test_layouts(layout: Layout, dims: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert strides_of(dims, layout) == strides


def test_tensors_are_numbered_and_aligned() -> None:
    builder = CaseBuilder(alignment_bytes=2)
    x = builder.tensor((4,), DataType.DOUBLE, name="x")
    scalar = builder.by_value(1, DataType.FLOAT)
    constant = builder.constant(1, DataType.HALF, 0.5)
    assert [t.uid for t in (x, scalar, constant)] == [1, 2, 3]
    assert [t.alignment_bytes for t in (x, scalar, constant)] == [8, 4, 2]
    assert scalar.is_by_value
    assert constant.constant_value == 0.5


def test_outputs_are_virtual_or_stored() -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST, virtual_type=DataType.HALF)
    x = builder.tensor((2, 3, 4, 5), DataType.FLOAT)
    bias = builder.tensor((1, 3, 1, 1), DataType.FLOAT)
    y = builder.pointwise(PointwiseMode.ADD, x, bias)
    z = builder.pointwise(PointwiseMode.EXP, y, store=DataType.BFLOAT16, layout=Layout.ROW_MAJOR)
    assert (y.is_virtual, y.data_type, y.dims) == (True, DataType.HALF, x.dims)
    assert (z.is_virtual, z.data_type, z.strides) == (False, DataType.BFLOAT16, (60, 20, 5, 1))
    assert builder.graph().outputs == (z,)


def test_the_compute_type_is_the_default_virtual_type() -> None:
    builder = CaseBuilder()
    x = builder.tensor((4,), DataType.INT8)
    assert builder.pointwise(PointwiseMode.NEG, x, compute_type=DataType.INT32).data_type is DataType.INT32
