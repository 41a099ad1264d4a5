"""Norms, softmax and statistics of channels for the builder of cases."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lowdnn.enums import DataType, NormFwdPhase, NormMode, PointwiseMode, ReduceTensorOp
from lowdnn.graph.layouts import Layout
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.ops import gen_stats
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.norm import NormShape, compute_type_of
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor


class RowBuilder(NodeWriter):
    """Methods of ``CaseBuilder``."""

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

        momentum: the factor of BATCH_NORM's running statistics, which are new inputs and outputs in that type.
        """
        parameter = scale or bias
        shape = NormShape(mode, x.dims, None if parameter is None else parameter.dims, groups)
        y = self.output(x.dims, compute_type_of(x), store, layout, "y")

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
        dx = self.output(x.dims, compute_type_of(x), store, layout, "dx")

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
        masked_is_nan: bool = False,
        sink: Tensor | None = None,
        statistics: DataType | None = None,
        names: Collection[str] = ("stats", "max", "sum_exp"),
        stats_log2: bool = False,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """y; of the log-sum-exp (``stats``), the maximum and the sum those in ``names`` are stored in the type
        ``statistics`` unless that is None."""
        y = self.output(x.dims, compute_type_of(x), store, layout, "y")
        dims = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.dims))
        made = {name: self.tensor(dims, statistics, name=name) for name in names if statistics}
        softmax = Softmax(x, y, sink=sink, stats_log2=stats_log2, axes=axes, is_log=is_log, masked_is_nan=masked_is_nan)
        self._operations.append(replace(softmax, **made))  # type: ignore[arg-type]
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

    def gen_stats(
        self, x: Tensor, *, compute_type: DataType = DataType.FLOAT, store: DataType = DataType.FLOAT
    ) -> tuple[Tensor, Tensor]:
        """(sum, sum of squares) of each channel, both stored."""
        dims = gen_stats.output_dims(x.dims)
        total = self.tensor(dims, store, name="sum")
        squares = self.tensor(dims, store, name="sum_of_squares")
        self._operations.append(GenStats(x, total, squares, compute_type))
        return total, squares
