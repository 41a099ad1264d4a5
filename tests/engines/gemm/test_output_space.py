from __future__ import annotations

from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, contiguous_stores, output_space
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.graph.pattern import PointwiseDag, match_anchored
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.pointwise import Pointwise
from tests.support.builders import convolution_graph


def dag_of_convolution(layout: Layout) -> PointwiseDag:
    matched = match_anchored(convolution_graph((2, 8, 6, 5), (16, 8, 1, 1), layout=layout), ConvolutionForward)
    assert not isinstance(matched, str)
    return matched.epilogue


def test_packed_pixels_become_one_row_axis() -> None:
    output = output_space(dag_of_convolution(Layout.CHANNELS_LAST), (0, 2, 3), (1,), (1,), {})
    assert (output.space.extents, output.row_axes) == ((60, 16), 1)
    assert (output.rows, output.columns) == (60, 16)


def test_columns_of_planes_span_no_two_images() -> None:
    dag = dag_of_convolution(Layout.ROW_MAJOR)
    output = output_space(dag, (1,), (0, 2, 3), (1,), {})
    assert (output.space.extents, output.row_axes) == ((16, 2, 30), 1)
    assert contiguous_stores(dag, 3) == 1
    assert contiguous_stores(dag, 1) == 0


def test_an_operand_that_does_not_merge_keeps_the_axes_separate() -> None:
    output = output_space(dag_of_convolution(Layout.CHANNELS_LAST), (0, 2, 3), (1,), (1,), {-2: (1000, 0, 5, 1)})
    assert output.space.extents == (2, 30, 16)
    assert output.space.strides[-2] == (1000, 1, 0)


def test_an_index_that_is_a_value_keeps_its_axis() -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    matched = match_anchored(convolution_graph((2, 8, 6, 5), (16, 8, 1, 1)), ConvolutionForward)
    assert not isinstance(matched, str)
    operation = matched.anchor
    x, w = builder.tensor(operation.x.dims, DataType.FLOAT), builder.tensor(operation.w.dims, DataType.FLOAT)
    y = builder.convolution(x, w, geometry=operation.convolution)
    index = builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.FLOAT, axis=3), y)
    builder.pointwise(PointwiseMode.ADD, y, index, store=DataType.FLOAT)
    indexed = match_anchored(builder.graph(), ConvolutionForward)
    assert not isinstance(indexed, str)
    assert output_space(indexed.epilogue, (0, 2, 3), (1,), (1,), {}).space.extents == (12, 5, 16)


def test_extents_of_one_leave_a_row_and_a_column_axis() -> None:
    matched = match_anchored(convolution_graph((1, 8, 1, 1), (16, 8, 1, 1)), ConvolutionForward)
    assert not isinstance(matched, str)
    rows = output_space(matched.epilogue, (0, 2, 3), (1,), (1,), {})
    columns = output_space(matched.epilogue, (1,), (0, 2, 3), (1,), {})
    assert (rows.space.extents, rows.row_axes) == ((1, 16), 1)
    assert (columns.space.extents, columns.row_axes) == ((16, 1), 1)
    assert isinstance(columns, OutputSpace)


def test_slices_are_whole_vectors() -> None:
    slices = Slices(splits=3, rows=5, columns=9)
    assert slices.pitch == 16
    assert slices.size_bytes % 256 == 0
    assert slices.size_bytes >= 3 * 5 * 16 * 4
