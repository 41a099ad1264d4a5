"""Writes operations of a graph in code: numbers the tensors, infers output shapes, keeps intermediates virtual."""

from __future__ import annotations

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, ReshapeMode
from lowdnn.graph.gathering import gathered
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout, strides_of
from lowdnn.ops import matmul, pointwise, slice, transpose
from lowdnn.ops.base import Operation
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.norm import compute_type_of
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.slice import Slice
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.transpose import Transpose


class NodeWriter:
    """Collects operations; ``graph()`` gives the graph. Tensor uids count up from ``first_uid``.

    Each operation returns its output: stored in data type ``store``, or where that is None virtual in ``virtual_type``
    (None: the operation's compute type). ``layout`` and ``alignment_bytes`` are the defaults of all tensors; alignments
    are raised to the element size.
    """

    def __init__(
        self,
        layout: Layout = Layout.ROW_MAJOR,
        *,
        alignment_bytes: int = 16,
        virtual_type: DataType | None = None,
        first_uid: int = 1,
    ) -> None:
        self._layout = layout
        self._alignment_bytes = alignment_bytes
        self._virtual_type = virtual_type
        self._operations: list[Operation] = []
        self._next_uid = first_uid

    def graph(self) -> OperationGraph:
        """The graph, with operations that belong inside of others put into them (``gathering``)."""
        return OperationGraph(gathered(self._operations))

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations so far."""
        return tuple(self._operations)

    def add(self, operation: Operation) -> None:
        """Adds an operation on tensors that exist already."""
        self._operations.append(operation)

    def new_uid(self) -> int:
        """A uid that no tensor has yet."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        return uid

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
        """A new tensor. ``layout`` does not count if ``strides`` are given."""
        alignment_bytes = max(self._alignment_bytes, dtypes.info(data_type).size_bytes)
        lies = strides_of(dims, layout or self._layout) if strides is None else strides
        return Tensor(self.new_uid(), data_type, dims, lies, alignment_bytes, is_virtual=is_virtual, name=name)

    def by_value(self, rank: int, data_type: DataType, *, name: str = "") -> Tensor:
        """A new one-element tensor whose value is given at execute."""
        ones, size = (1,) * rank, dtypes.info(data_type).size_bytes
        return Tensor(self.new_uid(), data_type, ones, ones, size, is_by_value=True, name=name)

    def constant(self, rank: int, data_type: DataType, value: float, *, name: str = "") -> Tensor:
        """A new one-element tensor whose value is part of the graph."""
        ones, size = (1,) * rank, dtypes.info(data_type).size_bytes
        return Tensor(self.new_uid(), data_type, ones, ones, size, constant_value=value, name=name)

    def output(
        self, dims: tuple[int, ...], compute_type: DataType, store: DataType | None, layout: Layout | None, name: str
    ) -> Tensor:
        """A new output: stored in ``store``, or virtual where that is None."""
        if compute_type is DataType.FAST_FLOAT_FOR_FP8:  # no tensor has that type
            compute_type = DataType.FLOAT
        data_type = store or self._virtual_type or compute_type
        return self.tensor(dims, data_type, layout=layout, is_virtual=store is None, name=name)

    def pointwise(
        self,
        mode: PointwiseMode | Pointwise,
        *operands: Tensor,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        virtual: DataType | None = None,
        layout: Layout | None = None,
        dims: tuple[int, ...] | None = None,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
    ) -> Tensor:
        """``operands`` in the order of ``input_ports(mode)``; a ``Pointwise`` brings its own compute type.

        virtual: the type of an output that is not stored, where it is not the default.  dims: the dims of the output,
        where operands repeat along more than each other.
        """
        arithmetic = mode if isinstance(mode, Pointwise) else Pointwise(mode, compute_type)
        ports = dict(zip(pointwise.input_ports(arithmetic.mode), operands, strict=True))
        dims = dims or pointwise.output_dims({port: tensor.dims for port, tensor in ports.items()})
        output = self.output(dims, virtual or arithmetic.compute_type, store, layout, "y")
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
        y = self.output(dims, compute_type, store, layout, "y")
        self._operations.append(ReductionOperation(Reduction(operator, compute_type), x=x, y=y))
        return y

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        c = self.output(matmul.output_dims(a.dims, b.dims), compute_type, store, layout, "c")
        self._operations.append(MatmulOperation(Matmul(compute_type), a=a, b=b, c=c))
        return c

    def transpose(
        self, x: Tensor, permutation: tuple[int, ...], *, store: DataType | None = None, layout: Layout | None = None
    ) -> Tensor:
        y = self.output(transpose.output_dims(x.dims, permutation), x.data_type, store, layout, "y")
        self._operations.append(Transpose(x, y, permutation))
        return y

    def slice(
        self,
        x: Tensor,
        start: tuple[int, ...],
        limit: tuple[int, ...],
        strides: tuple[int, ...] = (),
        *,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        dims = slice.output_dims(x.dims, start, limit, strides or (1,) * x.rank)
        y = self.output(dims, x.data_type, store, layout, "y")
        self._operations.append(Slice(x, y, start, limit, strides))
        return y

    def reshape(
        self,
        x: Tensor,
        dims: tuple[int, ...],
        *,
        mode: ReshapeMode = ReshapeMode.LOGICAL,
        strides: tuple[int, ...] | None = None,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """``strides`` win over ``layout``."""
        data_type = store or self._virtual_type or x.data_type
        y = self.tensor(dims, data_type, layout=layout, strides=strides, is_virtual=store is None, name="y")
        self._operations.append(Reshape(x, y, mode))
        return y

    def paged_cache_load(
        self,
        container: Tensor,
        page_table: Tensor,
        sequence: Tensor,
        length: int,
        *,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Sequences of ``length`` rows at most."""
        _, heads, _, size = container.dims
        dims = (page_table.dims[0], heads, length, size)
        y = self.tensor(dims, store or container.data_type, layout=layout, is_virtual=store is None, name="y")
        self._operations.append(PagedCacheLoad(container, y, sequence, page_table))
        return y

    def block_mask(self, x: Tensor, mask: Tensor, *, store: DataType | None = None) -> Tensor:
        y = self.output(x.dims, compute_type_of(x), store, None, "y")
        self._operations.append(BlockMask(x, mask, y))
        return y


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
