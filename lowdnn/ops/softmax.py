"""Softmax over some axes: with m the largest x and s = sum of exp(x - m) over them,

    y = exp(x - m) / s        is_log: y = x - m - log(s)
    max = m        sum_exp = s        stats = m + log(s), the log-sum-exp (stats_log2: its logarithm to base 2)

A row of nothing but minus infinity, all of it masked, gives y = 0 (is_log: minus infinity), as attention needs it, max
and stats of minus infinity and sum_exp = 0. With masked_is_nan its y is NaN, as the formula has it. NaN and plus
infinity give NaN.

A sink is one more element of each row, which m, s and so the statistics count, and y does not have: attention weights
that sum up to less than 1. Its extents are 1 along the axes, elsewhere x's or 1.

max, sum_exp and stats are there where they are asked for, with extent 1 along the axes. The axes are ``axes``, those
along which these tensors have extent 1, or the last one.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR. The logarithm is cudnnSoftmaxForward's
CUDNN_SOFTMAX_LOG; the graph operation has no attribute for it. The sink: Xiao et al., "Efficient streaming language
models with attention sinks", and the learned logits of later models.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.codec import LEFT_OUT
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.base import Values, inputs_of, outputs_of
from lowdnn.ops.norm import check_dims, check_float, compute_type_of
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError


@dataclass(frozen=True)
class Softmax:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_SOFTMAX
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    x: Tensor = tensor_input(AttributeName.OPERATION_SOFTMAX_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_SOFTMAX_YDESC)
    stats: Tensor | None = tensor_output(AttributeName.OPERATION_SOFTMAX_STATS_DESC, default=None)
    max: Tensor | None = tensor_output(AttributeName.OPERATION_SOFTMAX_MAX_DESC, default=None)
    sum_exp: Tensor | None = tensor_output(AttributeName.OPERATION_SOFTMAX_SUM_EXP_DESC, default=None)
    sink: Tensor | None = tensor_input(AttributeName.OPERATION_SOFTMAX_SINK_DESC, default=None)
    stats_log2: bool = attribute(AttributeName.OPERATION_SOFTMAX_STATS_LOG2, AttributeType.BOOLEAN, default=False)
    axes: tuple[int, ...] = ()
    is_log: bool = False
    masked_is_nan: bool = field(default=False, metadata={LEFT_OUT: True})

    def __post_init__(self) -> None:
        where = "softmax"
        if any(not 0 <= axis < self.x.rank for axis in self.axes) or len(set(self.axes)) != len(self.axes):
            raise BadParamError.at(
                f"{where}.axes", expected=f"distinct axes under the rank {self.x.rank}", got=list(self.axes)
            )
        check_dims(where, self.x.dims, {"y": self.y})
        check_dims(where, self.stats_dims, {"stats": self.stats, "max": self.max, "sum_exp": self.sum_exp})
        check_float(where, inputs_of(self) | outputs_of(self))
        if self.sink is not None:
            self._check_sink(f"{where}.sink.dims", self.sink)

    @property
    def normalised_axes(self) -> tuple[int, ...]:
        """The axes that the sums run over."""
        if self.axes:
            return tuple(sorted(self.axes))
        given = self.stats or self.max or self.sum_exp
        if given is None or given.rank != self.x.rank:
            return (self.x.rank - 1,)
        return tuple(axis for axis, extent in enumerate(given.dims) if extent == 1)

    @property
    def stats_dims(self) -> tuple[int, ...]:
        """The dims of stats, max and sum_exp."""
        return tuple(1 if axis in self.normalised_axes else extent for axis, extent in enumerate(self.x.dims))

    @property
    def stats_factor(self) -> float:
        """The factor from the natural logarithm to stats."""
        return 1 / log(2) if self.stats_log2 else 1.0

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        return 6 * self.x.element_count

    def without(self, ports: Collection[str]) -> Softmax:
        """The operation without the statistics at ``ports``."""
        absent: dict[str, Any] = dict.fromkeys(port for port in ("stats", "max", "sum_exp") if port in ports)
        return replace(self, axes=self.normalised_axes, **absent)

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        x, axes = inputs["x"], self.normalised_axes
        sink = inputs.get("sink", np.array(-np.inf))
        with np.errstate(all="ignore"):
            largest = np.maximum(np.max(x, axes, keepdims=True, initial=-np.inf), sink)
            base = np.where(largest == -np.inf, 0, largest)
            centred = x - base
            total = np.exp(centred).sum(axes, keepdims=True) + np.exp(sink - base)
            stats = largest + np.log(total)
            divisor = np.where(total == 0, np.nan if self.masked_is_nan else 1, total)
            results = {
                "y": centred - np.log(divisor) if self.is_log else np.exp(centred) / divisor,
                "stats": stats * self.stats_factor,
                "max": largest,
                "sum_exp": total,
            }
        return {port: results[port] for port in outputs_of(self)}

    def _check_sink(self, where: str, sink: Tensor) -> None:
        rows = self.stats_dims
        if sink.rank != len(rows) or any(e not in (1, row) for e, row in zip(sink.dims, rows, strict=True)):
            raise ShapeMismatchError.at(where, expected=f"{list(rows)}, or 1 where it repeats", got=list(sink.dims))
