"""Builds small graphs in code: numbers the tensors, infers output shapes, keeps intermediates virtual.

builder = GraphBuilder()
x = builder.tensor((2, 8, 16, 16), DataType.BFLOAT16, layout=Layout.CHANNELS_LAST)
w = builder.tensor((16, 8, 3, 3), DataType.BFLOAT16, layout=Layout.CHANNELS_LAST)
y = builder.convolution(x, w, pads=(1, 1))
builder.pointwise(PointwiseMode.RELU_FWD, y, store=DataType.BFLOAT16)
graph = builder.graph()
"""

from __future__ import annotations

from enum import Enum

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops import gen_stats, matmul, pointwise
from lowdnn.ops.base import Operation
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, channels_last_strides, packed_strides

#: Elements left unused behind each innermost row of Layout.PADDED.
_PADDING_ELEMENTS = 3


class Layout(Enum):
    """How a tensor's dims lie in memory."""

    ROW_MAJOR = "row"  #: packed, the last dimension innermost (NCHW)
    CHANNELS_LAST = "nhwc"  #: packed, dimension 1 innermost (NHWC); row-major where the rank is under 3
    PADDED = "padded"  #: row-major with unused elements behind each row
    TRANSPOSED = "transposed"  #: packed, the last two dimensions swapped


def strides_of(dims: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The strides of ``dims`` in ``layout``."""
    rank = len(dims)
    if layout is Layout.CHANNELS_LAST and rank > 2:
        return channels_last_strides(dims)
    if layout is Layout.TRANSPOSED and rank > 1:
        return packed_strides(dims, (*range(rank - 2), rank - 1, rank - 2))
    if layout is Layout.PADDED:
        return (*packed_strides((*dims[:-1], dims[-1] + _PADDING_ELEMENTS))[:-1], 1)
    return packed_strides(dims)


class GraphBuilder:
    """Collects operations; ``graph()`` gives the graph. Tensor uids count up from 1.

    Each operation returns its output: stored in data type ``store``, or where that is None virtual in ``virtual_type``
    (None: the operation's compute type). ``layout`` and ``alignment_bytes`` are the defaults of all tensors; alignments
    are raised to the element size.
    """

    def __init__(
        self, layout: Layout = Layout.ROW_MAJOR, *, alignment_bytes: int = 16, virtual_type: DataType | None = None
    ) -> None:
        self._layout = layout
        self._alignment_bytes = alignment_bytes
        self._virtual_type = virtual_type
        self._operations: list[Operation] = []
        self._next_uid = 1

    def graph(self) -> OperationGraph:
        return OperationGraph(self._operations)

    def tensor(
        self,
        dims: tuple[int, ...],
        data_type: DataType,
        *,
        layout: Layout | None = None,
        strides: tuple[int, ...] | None = None,
        is_virtual: bool = False,
        name: str = "",
    ) -> Tensor:
        """A new tensor; ``strides`` win over ``layout``."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        alignment_bytes = max(self._alignment_bytes, dtypes.info(data_type).size_bytes)
        lies = strides_of(dims, layout or self._layout) if strides is None else strides
        return Tensor(uid, data_type, dims, lies, alignment_bytes, is_virtual=is_virtual, name=name)

    def by_value(self, rank: int, data_type: DataType, *, name: str = "") -> Tensor:
        """A new one-element tensor whose value is given at execute."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        ones = (1,) * rank
        return Tensor(uid, data_type, ones, ones, dtypes.info(data_type).size_bytes, is_by_value=True, name=name)

    def constant(self, rank: int, data_type: DataType, value: float, *, name: str = "") -> Tensor:
        """A new one-element tensor whose value is part of the graph."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        ones = (1,) * rank
        size = dtypes.info(data_type).size_bytes
        return Tensor(uid, data_type, ones, ones, size, constant_value=value, name=name)

    def convolution(
        self,
        x: Tensor,
        w: Tensor,
        *,
        geometry: Convolution,
        store: DataType | None = None,
        layout: Layout | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        y = self._output(geometry.output_dims(x.dims, w.dims), geometry.compute_type, store, layout, "y")
        self._operations.append(ConvolutionForward(geometry, x=x, w=w, y=y, alpha=alpha, beta=beta))
        return y

    def convolution_data_gradient(
        self,
        dy: Tensor,
        w: Tensor,
        dims: tuple[int, ...],
        *,
        geometry: Convolution,
        store: DataType | None = None,
        layout: Layout | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dx of ``dims``."""
        dx = self._output(dims, geometry.compute_type, store, layout, "dx")
        self._operations.append(ConvolutionBackwardData(geometry, w=w, dy=dy, dx=dx, alpha=alpha, beta=beta))
        return dx

    def convolution_filter_gradient(
        self,
        x: Tensor,
        dy: Tensor,
        dims: tuple[int, ...],
        *,
        geometry: Convolution,
        store: DataType | None = None,
        layout: Layout | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dw of ``dims``."""
        dw = self._output(dims, geometry.compute_type, store, layout, "dw")
        self._operations.append(ConvolutionBackwardFilter(geometry, x=x, dy=dy, dw=dw, alpha=alpha, beta=beta))
        return dw

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        c = self._output(matmul.output_dims(a.dims, b.dims), compute_type, store, layout, "c")
        self._operations.append(MatmulOperation(Matmul(compute_type), a=a, b=b, c=c))
        return c

    def pointwise(
        self,
        mode: PointwiseMode | Pointwise,
        *operands: Tensor,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        virtual: DataType | None = None,
        layout: Layout | None = None,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
    ) -> Tensor:
        """``operands`` in the order of ``input_ports(mode)``; a ``Pointwise`` brings its own compute type.

        virtual: the type of an output that is not stored, where it is not the default.
        """
        arithmetic = mode if isinstance(mode, Pointwise) else Pointwise(mode, compute_type)
        ports = dict(zip(pointwise.input_ports(arithmetic.mode), operands, strict=True))
        dims = pointwise.output_dims(tuple(tensor.dims for tensor in operands))
        output = self._output(dims, virtual or arithmetic.compute_type, store, layout, "y")
        ports[pointwise.output_port(arithmetic.mode)] = output
        self._operations.append(_pointwise_operation(arithmetic, ports, alpha1, alpha2))
        return output

    def reduction(
        self,
        operator: ReduceTensorOp,
        x: Tensor,
        axes: tuple[int, ...],
        *,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        dims = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.dims))
        y = self._output(dims, compute_type, store, layout, "y")
        self._operations.append(ReductionOperation(Reduction(operator, compute_type), x=x, y=y))
        return y

    def gen_stats(
        self, x: Tensor, *, compute_type: DataType = DataType.FLOAT, store: DataType = DataType.FLOAT
    ) -> tuple[Tensor, Tensor]:
        """(sum, sum of squares) of each channel, both stored."""
        dims = gen_stats.output_dims(x.dims)
        total = self.tensor(dims, store, name="sum")
        squares = self.tensor(dims, store, name="sum_of_squares")
        self._operations.append(GenStats(x, total, squares, compute_type))
        return total, squares

    def _output(
        self, dims: tuple[int, ...], compute_type: DataType, store: DataType | None, layout: Layout | None, name: str
    ) -> Tensor:
        if compute_type is DataType.FAST_FLOAT_FOR_FP8:  # which no tensor can have
            compute_type = DataType.FLOAT
        data_type = store or self._virtual_type or compute_type
        return self.tensor(dims, data_type, layout=layout, is_virtual=store is None, name=name)


def _pointwise_operation(
    arithmetic: Pointwise, ports: dict[str, Tensor], alpha1: float, alpha2: float
) -> PointwiseOperation:
    return PointwiseOperation(
        arithmetic,
        x=ports.get("x"),
        b=ports.get("b"),
        t=ports.get("t"),
        dy=ports.get("dy"),
        y=ports.get("y"),
        dx=ports.get("dx"),
        alpha1=alpha1,
        alpha2=alpha2,
    )
