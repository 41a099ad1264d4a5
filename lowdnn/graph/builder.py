"""Builds small graphs in code: numbers the tensors, infers output shapes, keeps intermediates virtual.

builder = GraphBuilder()
x = builder.tensor((2, 8, 16, 16), DataType.BFLOAT16, layout=Layout.CHANNELS_LAST)
w = builder.tensor((16, 8, 3, 3), DataType.BFLOAT16, layout=Layout.CHANNELS_LAST)
y = builder.convolution(x, w, pads=(1, 1))
builder.pointwise(PointwiseMode.RELU_FWD, y, store=DataType.BFLOAT16)
graph = builder.graph()
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum

from lowdnn import dtypes
from lowdnn.enums import (
    DataType,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    NormMode,
    PointwiseMode,
    ReduceTensorOp,
    ReshapeMode,
    TensorReordering,
)
from lowdnn.graph.gathering import gathered
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops import block_scale, concat, gen_stats, matmul, moe_grouped_matmul, pointwise, slice, transpose
from lowdnn.ops.base import Operation
from lowdnn.ops.bit_mask import PackBits, UnpackBits, bits_of
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.concat import Concat
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.norm import NormShape, compute_type_of
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.ragged import RaggedLoad
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.resample import Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_fp8_backward import LARGEST, SdpaFp8Backward
from lowdnn.ops.slice import Slice
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor, channels_last_strides, packed_strides
from lowdnn.ops.transpose import Transpose

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
        """With operations that belong inside of others there (``gathering``)."""
        return OperationGraph(gathered(self._operations))

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._operations)

    def add(self, operation: Operation) -> None:
        """One whose tensors are made elsewhere."""
        self._operations.append(operation)

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

    def moe_grouped_matmul(
        self,
        token: Tensor,
        weight: Tensor,
        first_token_offset: Tensor,
        token_index: Tensor | None = None,
        token_ks: Tensor | None = None,
        *,
        mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE,
        top_k: int = 0,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        rows = None if token_index is None else token_index.dims
        dims = moe_grouped_matmul.output_dims(mode, token.dims, weight.dims, rows)
        output = self._output(dims, compute_type, store, layout, "output")
        self._operations.append(
            MoeGroupedMatmul(
                mode, compute_type, token, weight, first_token_offset, output, token_index, token_ks, top_k
            )
        )
        return output

    def moe_weight_gradient(
        self,
        doutput: Tensor,
        token: Tensor,
        first_token_offset: Tensor,
        experts: int,
        *,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """dweight of ``experts``."""
        dims = (experts, token.dims[-1], doutput.dims[-1])
        dweight = self._output(dims, compute_type, store, layout, "dweight")
        self._operations.append(MoeGroupedMatmulBackward(compute_type, doutput, token, first_token_offset, dweight))
        return dweight

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

        virtual: the type of an output that is not stored, where it is not the default.  dims: of the output, where
        operands repeat along more than each other.
        """
        arithmetic = mode if isinstance(mode, Pointwise) else Pointwise(mode, compute_type)
        ports = dict(zip(pointwise.input_ports(arithmetic.mode), operands, strict=True))
        dims = dims or pointwise.output_dims({port: tensor.dims for port, tensor in ports.items()})
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

    def resample(
        self,
        x: Tensor,
        geometry: Resample,
        *,
        store: DataType | None = None,
        layout: Layout | None = None,
        index_type: DataType | None = None,
    ) -> Tensor:
        """y; where there is an ``index_type``, the places of maxima are stored in it beside y."""
        dims = geometry.output_dims(x.dims)
        y = self._output(dims, geometry.compute_type, store, layout, "y")
        index = None if index_type is None else self.tensor(dims, index_type, layout=layout, name="index")
        self._operations.append(ResampleForward(geometry, x=x, y=y, index=index))
        return y

    def resample_gradient(
        self,
        dy: Tensor,
        dims: tuple[int, ...],
        geometry: Resample,
        *,
        index: Tensor | None = None,
        x: Tensor | None = None,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """dx of ``dims``."""
        dx = self._output(dims, geometry.compute_type, store, layout, "dx")
        self._operations.append(ResampleBackward(geometry, dy=dy, dx=dx, index=index, x=x))
        return dx

    def norm(
        self,
        mode: NormMode,
        x: Tensor,
        epsilon: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        groups: int = 0,
        phase: NormFwdPhase = NormFwdPhase.TRAINING,
        momentum: Tensor | None = None,
        store: DataType | None = None,
        statistics: DataType = DataType.FLOAT,
        layout: Layout | None = None,
    ) -> Tensor:
        """y; mean and inverse variance are stored in the type ``statistics``.

        momentum: of BATCH_NORM's running statistics, which are new inputs and outputs in that type.
        """
        parameter = scale or bias
        shape = NormShape(mode, x.dims, None if parameter is None else parameter.dims, groups)
        y = self._output(x.dims, compute_type_of(x), store, layout, "y")

        def stored(name: str) -> Tensor:
            return self.tensor(shape.stats_dims, statistics, name=name)

        has_mean, is_training = mode is not NormMode.RMS_NORM, phase is NormFwdPhase.TRAINING
        operation = NormForward(
            mode,
            phase,
            x,
            epsilon,
            y,
            scale,
            bias,
            mean=stored("mean") if is_training and has_mean else None,
            inv_variance=stored("inv_variance") if is_training else None,
            exp_avg_factor=momentum,
            input_running_mean=stored("running_mean") if momentum else None,
            input_running_var=stored("running_var") if momentum else None,
            output_running_mean=stored("next_running_mean") if momentum else None,
            output_running_var=stored("next_running_var") if momentum else None,
            groups=groups,
        )
        self._operations.append(operation)
        return y

    def norm_backward(
        self,
        mode: NormMode,
        x: Tensor,
        dy: Tensor,
        scale: Tensor | None = None,
        *,
        groups: int = 0,
        store: DataType | None = None,
        statistics: DataType = DataType.FLOAT,
        has_bias: bool = True,
        layout: Layout | None = None,
    ) -> Tensor:
        """dx; the statistics are new inputs, dscale and (has_bias) dbias stored outputs, of the type ``statistics``."""
        shape = NormShape(mode, x.dims, None if scale is None else scale.dims, groups)
        has_mean, has_scale = mode is not NormMode.RMS_NORM, scale is not None
        dx = self._output(x.dims, compute_type_of(x), store, layout, "dx")

        def made(dims: tuple[int, ...] | None, name: str) -> Tensor | None:
            return None if dims is None else self.tensor(dims, statistics, name=name)

        operation = NormBackward(
            mode,
            x,
            dy,
            dx,
            mean=made(shape.stats_dims, "mean") if has_mean else None,
            inv_variance=made(shape.stats_dims, "inv_variance"),
            scale=scale,
            dscale=made(shape.scale_dims, "dscale"),
            dbias=made(shape.scale_dims, "dbias") if has_scale and has_bias else None,
        )
        self._operations.append(operation)
        return dx

    def softmax(
        self,
        x: Tensor,
        axes: tuple[int, ...],
        *,
        is_log: bool = False,
        sink: Tensor | None = None,
        statistics: DataType | None = None,
        names: Collection[str] = ("stats", "max", "sum_exp"),
        stats_log2: bool = False,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """y; of the log-sum-exp (``stats``), the maximum and the sum those in ``names`` are stored in the type
        ``statistics`` unless that is None."""
        y = self._output(x.dims, compute_type_of(x), store, layout, "y")
        dims = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.dims))
        made = {name: self.tensor(dims, statistics, name=name) for name in names if statistics}
        softmax = Softmax(x, y, **made, sink=sink, stats_log2=stats_log2, axes=axes, is_log=is_log)
        self._operations.append(softmax)
        return y

    def softmax_backward(
        self,
        dy: Tensor,
        y: Tensor,
        axes: tuple[int, ...],
        *,
        is_log: bool = False,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """y * (dy - sum of dy * y), is_log: dy - exp(y) * sum of dy, as pointwise operations and a sum."""
        compute, add, mul = compute_type_of(y), ReduceTensorOp.ADD, PointwiseMode.MUL
        if is_log:
            shares = self.pointwise(PointwiseMode.EXP, y, compute_type=compute)
            total = self.reduction(add, dy, axes, compute_type=compute)
            product = self.pointwise(mul, shares, total, compute_type=compute)
            return self.pointwise(PointwiseMode.SUB, dy, product, compute_type=compute, store=store, layout=layout)
        total = self.reduction(add, self.pointwise(mul, dy, y, compute_type=compute), axes, compute_type=compute)
        rest = self.pointwise(PointwiseMode.SUB, dy, total, compute_type=compute)
        return self.pointwise(mul, rest, y, compute_type=compute, store=store, layout=layout)

    def sdpa_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        d_o: Tensor,
        stats: Tensor,
        *,
        scale: Tensor | None = None,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        left: int | None = None,
        right: int | None = None,
        is_bottom_right: bool = False,
        is_deterministic: bool = False,
        store: DataType | None = None,
        dbias: Tensor | None = None,
        inner: Subgraph | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv), stored as q, k and v lie, in ``store`` or in their types."""
        dq, dk, dv = (
            self.tensor(tensor.dims, store or tensor.data_type, strides=tensor.strides, name=name)
            for name, tensor in {"dq": q, "dk": k, "dv": v}.items()
        )
        ports = (q, k, v, o, d_o, stats, dq, dk, dv, scale, seq_len_q, seq_len_kv, dbias, inner)
        self._operations.append(SdpaBackward(*ports, left, right, is_bottom_right, is_deterministic))
        return dq, dk, dv

    def sdpa_fp8_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        d_o: Tensor,
        stats: Tensor,
        numbers: tuple[Tensor, ...],
        *,
        scale: Tensor | None = None,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        left: int | None = None,
        right: int | None = None,
        is_bottom_right: bool = False,
        is_deterministic: bool = False,
        store: DataType | None = None,
        inner: Subgraph | None = None,
    ) -> tuple[Tensor, ...]:
        """(dq, dk, dv), stored as q, k and v lie, in ``store`` or in the type of d_o, and the largest magnitudes."""
        gradients = {
            name: self.tensor(tensor.dims, store or d_o.data_type, strides=tensor.strides, name=name)
            for name, tensor in {"dq": q, "dk": k, "dv": v}.items()
        }
        largest = tuple(self.tensor((1, 1, 1, 1), DataType.FLOAT, name=f"amax_{port}") for port in LARGEST)
        operation = SdpaFp8Backward(
            q=q,
            k=k,
            v=v,
            o=o,
            d_o=d_o,
            stats=stats,
            scale=scale,
            seq_len_q=seq_len_q,
            seq_len_kv=seq_len_kv,
            inner=inner,
            left=left,
            right=right,
            is_bottom_right=is_bottom_right,
            is_deterministic=is_deterministic,
            numbers=numbers,
            largest=largest,
            **gradients,
        )
        self._operations.append(operation)
        return (*gradients.values(), *largest)

    def block_mask(self, x: Tensor, mask: Tensor, *, store: DataType | None = None) -> Tensor:
        y = self._output(x.dims, compute_type_of(x), store, None, "y")
        self._operations.append(BlockMask(x, mask, y))
        return y

    def rope(
        self,
        x: Tensor,
        freqs: Tensor,
        *,
        output_scale: float = 1.0,
        rope_dim: int = 0,
        is_gradient: bool = False,
        store: DataType | None = None,
    ) -> Tensor:
        """y of x, or dx of dy, stored as that lies, in ``store`` or in its type."""
        name = "dx" if is_gradient else "y"
        y = self.tensor(x.dims, store or x.data_type, strides=x.strides, name=name)
        operation = RopeBackward if is_gradient else RopeForward
        self._operations.append(operation(x, y, freqs, output_scale, rope_dim))
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

    def pack_bits(self, mask: Tensor) -> Tensor:
        """Packs a BOOLEAN tensor into bits, a stored UINT8 tensor (ceil(elements / 8),)."""
        y = self.tensor(bits_of(mask).dims, DataType.UINT8, layout=Layout.ROW_MAJOR, name="y")
        self._operations.append(PackBits(mask, y))
        return y

    def unpack_bits(self, bits: Tensor, dims: tuple[int, ...], *, layout: Layout | None = None) -> Tensor:
        """Unpacks bits, a UINT8 tensor, into a stored BOOLEAN tensor of ``dims``."""
        y = self.tensor(dims, DataType.BOOLEAN, layout=layout, name="y")
        self._operations.append(UnpackBits(bits, y))
        return y

    def ragged_load(self, x: Tensor, offsets: Tensor, rows: int, multiplier: int = 1) -> Tensor:
        """Sequences of up to ``rows`` rows of the packed ``x``, virtual."""
        dims = (offsets.dims[0] - 1, x.dims[1], rows, x.dims[3])
        y = self.tensor(dims, x.data_type, is_virtual=True, name="y")
        self._operations.append(RaggedLoad(x, y, offsets, multiplier))
        return y

    def rng(
        self,
        distribution: Rng,
        dims: tuple[int, ...],
        *,
        seed: Tensor | int = 0,
        offset: Tensor | None = None,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Random numbers; virtual ones in FLOAT where the builder has no other type for them."""
        y = self._output(dims, DataType.FLOAT, store, layout, "y")
        self._operations.append(RngOperation(distribution, y, seed, offset))
        return y

    def transpose(
        self, x: Tensor, permutation: tuple[int, ...], *, store: DataType | None = None, layout: Layout | None = None
    ) -> Tensor:
        y = self._output(transpose.output_dims(x.dims, permutation), x.data_type, store, layout, "y")
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
        y = self._output(dims, x.data_type, store, layout, "y")
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

    def concat(
        self,
        inputs: Sequence[Tensor],
        axis: int,
        *,
        in_place_index: int | None = None,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        dims = concat.output_dims([tensor.dims for tensor in inputs], axis)
        y = self._output(dims, inputs[0].data_type, store, layout, "y")
        self._operations.append(Concat(axis, tuple(inputs), y, in_place_index))
        return y

    def block_scale_quantize(
        self,
        x: Tensor,
        block_size: int,
        axis: int,
        *,
        store: DataType = DataType.FP8_E4M3,
        scale_type: DataType = DataType.FP8_E8M0,
        layout: Layout | None = None,
        reordering: TensorReordering = TensorReordering.NONE,
    ) -> tuple[Tensor, Tensor]:
        """(y, scale), both stored; ``reordering``: of the scales."""
        y = self.tensor(x.dims, store, layout=layout, name="y")
        scale = self.block_scales(x.dims, axis, block_size, scale_type, reordering)
        self._operations.append(BlockScaleQuantize(x, y, scale, DataType.FLOAT, block_size))
        return y, scale

    def block_scales(
        self,
        dims: tuple[int, ...],
        axis: int,
        block_size: int,
        data_type: DataType,
        reordering: TensorReordering = TensorReordering.NONE,
    ) -> Tensor:
        """A new tensor of scales for a tensor of ``dims``."""
        found = block_scale.scale_dims(dims, axis, block_size, reordering)
        layout = self._layout if reordering is TensorReordering.NONE else Layout.ROW_MAJOR
        return replace(self.tensor(found, data_type, layout=layout, name="scale"), reordering=reordering)

    def block_scale_dequantize(
        self,
        x: Tensor,
        scale: Tensor,
        block_size: int,
        *,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        y = self._output(x.dims, DataType.FLOAT, store, layout, "y")
        self._operations.append(BlockScaleDequantize(x, scale, y, DataType.FLOAT, block_size))
        return y

    def expand_band_matrix(
        self,
        x: Tensor,
        columns: int,
        bandwidths: tuple[int, int],
        *,
        axis: int,
        pad: float,
        store: DataType,
        layout: Layout | None = None,
    ) -> Tensor:
        """A matrix of ``columns`` along ``axis``; bandwidths: below and above the main diagonal."""
        y = self.tensor((*x.dims[:axis], columns, *x.dims[axis + 1 :]), store, layout=layout, name="y")
        self._operations.append(ExpandBandMatrix(x, y, *bandwidths, axis, pad))
        return y

    def contract_band_matrix(
        self,
        x: Tensor,
        bandwidths: tuple[int, int],
        *,
        axis: int,
        pad: float,
        store: DataType,
        layout: Layout | None = None,
    ) -> Tensor:
        y = self.tensor((*x.dims[:axis], sum(bandwidths) + 1, *x.dims[axis + 1 :]), store, layout=layout, name="y")
        self._operations.append(ContractBandMatrix(x, y, *bandwidths, axis, pad))
        return y

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
