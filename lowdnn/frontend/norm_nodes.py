"""Norms and softmax of a pygraph before lowering. Dims, strides and types that were left out follow x: dims by
``ops.norm`` and ``ops.softmax``, strides in x's order of dimensions, packed; y and dx lie as x does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lowdnn.enums import BnFinalizeStatsMode, DataType, NormFwdPhase, NormMode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import strides_like
from lowdnn.frontend.nodes import Lowered, ReductionNode
from lowdnn.frontend.ports_node import PortsNode
from lowdnn.ops.base import Operation
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.norm import NormShape
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.softmax import Softmax
from lowdnn.status import BadParamError

#: The ends of tensors' default names, by the port of the operation.
_SUFFIXES = {
    "x": "X",
    "y": "Y",
    "dy": "DY",
    "dx": "DX",
    "scale": "Scale",
    "bias": "Bias",
    "epsilon": "Epsilon",
    "mean": "MEAN",
    "inv_variance": "INV_VARIANCE",
    "exp_avg_factor": "Momentum",
    "input_running_mean": "PREV_RUNNING_MEAN",
    "input_running_var": "PREV_RUNNING_VAR",
    "output_running_mean": "NEXT_RUNNING_MEAN",
    "output_running_var": "NEXT_RUNNING_VAR",
    "dscale": "DSCALE",
    "dbias": "DBIAS",
    "stats": "STATS",
    "sink": "SINK",
    "max": "MAX",
    "sum_exp": "SUM_EXP",
    "sum": "SUM",
    "sum_of_squares": "SQ_SUM",
    "accum_count": "ACCUM_COUNT",
    "inv_std": "INV_VARIANCE",
    "eq_scale": "EQ_SCALE",
    "eq_bias": "EQ_BIAS",
}
#: Suffixes of names that cudnn-frontend spells differently for RMS norm.
_RMS_SUFFIXES = {"dscale": "Dscale", "dbias": "Dbias"}


@dataclass(frozen=True)
class _SourceNode(PortsNode):
    """``source``: the input that outputs follow."""

    suffixes: ClassVar[Mapping[str, str]] = _SUFFIXES
    source: ClassVar[str] = "x"

    def _dims(self, port: str) -> tuple[int, ...] | None:
        tensor = self.given.get(port)
        return None if tensor is None else tuple(tensor.get_dim())

    def _fill(self, outputs: tuple[Tensor, ...], dims: Mapping[str, tuple[int, ...] | None]) -> None:
        """Gives each output its dims and strides, where it has none."""
        x = self.given[self.source]
        for port, output in zip(self.made, outputs, strict=True):
            if not output.get_dim():
                wanted = dims[port]
                if wanted is None:
                    raise BadParamError.at(
                        f"{output.label}.dim", expected="dims, which say what is normalised", got="none"
                    )
                output.set_dim(wanted)
            if not output.get_stride():
                output.set_stride(strides_like(x, output.get_dim()))

    def _lowered(self, outputs: tuple[Tensor, ...], lowered: Lowered) -> dict[str, object]:
        """The operation's fields; ports such as ``peer_stats[0]`` and ``peer_stats[1]`` become one tuple."""
        found: dict[str, Any] = {}
        for port, tensor in self._lowered_ports(outputs, lowered).items():
            name, is_many, _ = port.partition("[")
            found[name] = (*found.get(name, ()), tensor) if is_many else tensor
        return found


@dataclass(frozen=True)
class NormForwardNode(_SourceNode):
    mode: NormMode
    phase: NormFwdPhase
    groups: int = 0

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        x_dims = tuple(self.given["x"].get_dim())
        shape = NormShape(self.mode, x_dims, self._dims("scale") or self._dims("bias"), self.groups)
        shape.check("norm_forward")
        self._fill(outputs, {port: x_dims if port == "y" else shape.stats_dims for port in self.made})

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        tensors = self._lowered(outputs, lowered)
        return NormForward(self.mode, self.phase, groups=self.groups, **tensors)  # type: ignore[arg-type]


@dataclass(frozen=True)
class NormBackwardNode(_SourceNode):
    mode: NormMode

    @property
    def output_suffixes(self) -> tuple[str, ...]:
        suffixes = _SUFFIXES | (_RMS_SUFFIXES if self.mode is NormMode.RMS_NORM else {})
        return tuple(suffixes[port] for port in self.made)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        x_dims, scale_dims = self._dims("x"), self._dims("scale")
        self._fill(outputs, {port: x_dims if port == "dx" else scale_dims for port in self.made})

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return NormBackward(self.mode, **self._lowered(outputs, lowered))  # type: ignore[arg-type]


@dataclass(frozen=True)
class BnFinalizeNode(_SourceNode):
    source = "sum"

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        self._fill(outputs, dict.fromkeys(self.made, self._dims("sum")))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        tensors = self._lowered(outputs, lowered)
        return BnFinalize(BnFinalizeStatsMode.TRAINING, compute_type, **tensors)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SoftmaxNode(_SourceNode):
    """``axes`` may count from the last one backwards, as -1."""

    axes: tuple[int, ...]
    is_log: bool
    stats_log2: bool = False

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        dims, axes = self.given["x"].get_dim(), self._axes()
        kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(dims))
        self._fill(outputs, {port: tuple(dims) if port == "y" else kept for port in self.made})

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        tensors = self._lowered(outputs, lowered)
        return Softmax(axes=self._axes(), is_log=self.is_log, stats_log2=self.stats_log2, **tensors)  # type: ignore[arg-type]

    def _axes(self) -> tuple[int, ...]:
        return counted_axes(self.axes, len(self.given["x"].get_dim()), "softmax.axis")


@dataclass(frozen=True)
class AlikeNode(_SourceNode):
    """An operation whose outputs have the dims of x; ``parameters``: its fields that are no tensors."""

    operation: Callable[..., Operation]
    parameters: Mapping[str, int | float]

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        self._fill(outputs, dict.fromkeys(self.made, self._dims("x")))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return self.operation(**self._lowered(outputs, lowered), **self.parameters)


def counted_axes(axes: tuple[int, ...], rank: int, where: str) -> tuple[int, ...]:
    """``axes`` of a tensor of ``rank``, negative ones counted from the end; raises BadParamError."""
    if not axes or any(not -rank <= axis < rank for axis in axes):
        raise BadParamError.at(where, expected=f"axes from {-rank} to {rank - 1}", got=list(axes))
    return tuple(axis % rank for axis in axes)


@dataclass(frozen=True)
class RowSumNode(ReductionNode):
    """A reduction over ``axes``, negative ones counted from the end, whatever the dims of its input."""

    axes: tuple[int, ...] = ()

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (output,), dims = outputs, self.inputs[0].get_dim()
        axes = counted_axes(self.axes, len(dims), "softmax_backward.axis")
        if not output.get_dim():
            output.set_dim([1 if axis in axes else extent for axis, extent in enumerate(dims)])
        super().infer(outputs, compute_type)
