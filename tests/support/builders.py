"""Small graphs for tests: one call, one graph."""

from __future__ import annotations

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.pointwise import Pointwise, input_ports


def convolution_graph(
    x_dims: tuple[int, ...] = (2, 8, 9, 7),
    w_dims: tuple[int, ...] = (16, 8, 3, 3),
    *,
    data_type: DataType = DataType.FLOAT,
    compute_type: DataType = DataType.FLOAT,
    store: DataType | None = None,
    layout: Layout = Layout.CHANNELS_LAST,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    dilations: tuple[int, ...] | None = None,
    epilogue: tuple[PointwiseMode, ...] = (),
) -> OperationGraph:
    """y = conv(x, w), then unary ``epilogue`` modes. x has uid 1, w uid 2."""
    spatial = len(x_dims) - 2
    ones, zeros = (1,) * spatial, (0,) * spatial
    geometry = Convolution(compute_type, spatial, pads or zeros, pads or zeros, strides or ones, dilations or ones)
    builder = CaseBuilder(layout)
    x = builder.tensor(x_dims, data_type, name="x")
    w = builder.tensor(w_dims, data_type, name="w")
    final = store or data_type
    value = builder.convolution(x, w, geometry=geometry, store=None if epilogue else final)
    for number, mode in enumerate(epilogue, 1):
        value = builder.pointwise(mode, value, store=final if number == len(epilogue) else None)
    return builder.graph()


def matmul_graph(
    batch: tuple[int, ...] = (2,),
    m: int = 16,
    n: int = 24,
    k: int = 32,
    *,
    data_type: DataType = DataType.FLOAT,
    compute_type: DataType = DataType.FLOAT,
    store: DataType | None = None,
    a_layout: Layout = Layout.ROW_MAJOR,
    b_layout: Layout = Layout.ROW_MAJOR,
    epilogue: tuple[PointwiseMode, ...] = (),
) -> OperationGraph:
    """c = a b, then unary ``epilogue`` modes. a has uid 1, b uid 2."""
    builder = CaseBuilder()
    a = builder.tensor((*batch, m, k), data_type, layout=a_layout, name="a")
    b = builder.tensor((*batch, k, n), data_type, layout=b_layout, name="b")
    final = store or data_type
    value = builder.matmul(a, b, compute_type=compute_type, store=None if epilogue else final)
    for number, mode in enumerate(epilogue, 1):
        value = builder.pointwise(mode, value, store=final if number == len(epilogue) else None)
    return builder.graph()


def pointwise_graph(
    mode: PointwiseMode | Pointwise,
    *operand_dims: tuple[int, ...],
    data_type: DataType = DataType.FLOAT,
    compute_type: DataType = DataType.FLOAT,
    store: DataType | None = None,
    layout: Layout = Layout.ROW_MAJOR,
    alpha1: float = 1.0,
    alpha2: float = 1.0,
) -> OperationGraph:
    """One operation; operands (uids from 1) in the order of ``input_ports``; one dims for all of them will do."""
    ports = input_ports(mode.mode if isinstance(mode, Pointwise) else mode)
    shapes = operand_dims if len(operand_dims) == len(ports) else operand_dims * len(ports)
    builder = CaseBuilder(layout)
    operands = [
        builder.tensor(dims, DataType.BOOLEAN if port == "t" else data_type, name=port)
        for port, dims in zip(ports, shapes, strict=True)
    ]
    builder.pointwise(
        mode, *operands, compute_type=compute_type, store=store or data_type, alpha1=alpha1, alpha2=alpha2
    )
    return builder.graph()


def reduction_graph(
    operator: ReduceTensorOp,
    dims: tuple[int, ...],
    axes: tuple[int, ...],
    *,
    data_type: DataType = DataType.FLOAT,
    compute_type: DataType = DataType.FLOAT,
    store: DataType | None = None,
    layout: Layout = Layout.ROW_MAJOR,
) -> OperationGraph:
    """y = operator over ``axes`` of x. x has uid 1, y uid 2."""
    builder = CaseBuilder(layout)
    x = builder.tensor(dims, data_type, name="x")
    builder.reduction(operator, x, axes, compute_type=compute_type, store=store or data_type)
    return builder.graph()
