"""Norms and their gradients: patterns of ``row_pattern`` with the engines ``norm_rows`` and ``batch_norm``, and of
``bit_masks``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowdnn.enums import BnFinalizeStatsMode, DataType, NormFwdPhase, NormMode, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.tensor import Tensor
from tests.support.near_misses.pattern import Known, Sketch, taken_by

_FLOAT, _HALF = DataType.FLOAT, DataType.HALF
_MODES, _NORMS = PointwiseMode, NormMode
_IMAGE, _CHANNELS = (2, 4, 3, 2), (1, 4, 1, 1)
_MATRIX, _COLUMNS = (3, 2, 8), (1, 1, 8)


def _forward(
    sketch: Sketch, mode: NormMode, dims: tuple[int, ...], parameter: tuple[int, ...], groups: int = 0
) -> tuple[Tensor, Tensor]:
    """(x before an addition, y)."""
    x = sketch.tensor(dims, _FLOAT, name="x")
    scale, bias = (sketch.tensor(parameter, _FLOAT, name=name) for name in ("scale", "bias"))
    epsilon = sketch.value(0.05, rank=len(dims), name="epsilon")
    added = sketch.pointwise(_MODES.ADD, x, sketch.tensor(dims, _HALF, name="residual"))
    return x, sketch.norm(mode, added, epsilon, scale, bias, groups=groups)


def layer_norm(sketch: Sketch) -> None:
    """Behind an addition that is stored, before an activation."""
    x, residual = sketch.tensor(_MATRIX, _HALF, name="x"), sketch.tensor(_MATRIX, _HALF, name="residual")
    added = sketch.pointwise(_MODES.ADD, x, residual, store=_HALF)
    scale, bias = (sketch.tensor(_COLUMNS, _FLOAT, name=name) for name in ("scale", "bias"))
    y = sketch.norm(_NORMS.LAYER_NORM, added, sketch.constant(3, _FLOAT, 0.05), scale, bias)
    sketch.pointwise(_MODES.RELU_FWD, y, store=_HALF)


def rms_norm(sketch: Sketch) -> None:
    x, scale = sketch.tensor(_MATRIX, _HALF, name="x"), sketch.tensor(_COLUMNS, _HALF, name="scale")
    y = sketch.norm(_NORMS.RMS_NORM, x, sketch.value(0.05, rank=3), scale, phase=NormFwdPhase.INFERENCE)
    sketch.pointwise(_MODES.MUL, y, sketch.tensor((3, 2, 1), _FLOAT, name="gate"), store=_HALF)


def ada_layer_norm(sketch: Sketch) -> None:
    _, y = _forward(sketch, _NORMS.ADA_LAYER_NORM, _MATRIX, (3, 1, 8))
    sketch.pointwise(_MODES.NEG, y, store=_FLOAT)


def instance_norm(sketch: Sketch) -> None:
    _, y = _forward(sketch, _NORMS.INSTANCE_NORM, _IMAGE, _CHANNELS)
    sketch.pointwise(_MODES.RELU_FWD, y, store=_HALF)


def group_norm(sketch: Sketch) -> None:
    """A group norm of images with contiguous channels, behind which each channel has a number."""
    x = sketch.tensor(_IMAGE, _FLOAT, layout=Layout.CHANNELS_LAST, name="x")
    scale, bias = (sketch.tensor(_CHANNELS, _FLOAT, name=name) for name in ("scale", "bias"))
    y = sketch.norm(_NORMS.GROUP_NORM, x, sketch.value(0.05), scale, bias, groups=2, layout=Layout.CHANNELS_LAST)
    gate = sketch.tensor(_CHANNELS, _FLOAT, name="gate")
    sketch.pointwise(_MODES.MUL, y, gate, store=_HALF, layout=Layout.CHANNELS_LAST)


def batch_norm(sketch: Sketch) -> None:
    """With running statistics, and behind it an addition and an activation."""
    sketch.pointwise(_MODES.RELU_FWD, _added_batch_norm(sketch), store=_HALF)


def masked_batch_norm(sketch: Sketch) -> None:
    """A batch norm with a mask of bits."""
    added = _added_batch_norm(sketch)
    sketch.pointwise(_MODES.RELU_FWD, added, store=_HALF)
    sketch.pointwise(_MODES.CMP_GT, added, sketch.constant(4, _FLOAT, 0.0), store=DataType.BOOLEAN)


def _added_batch_norm(sketch: Sketch) -> Tensor:
    x = sketch.tensor(_IMAGE, _HALF, name="x")
    scale, bias = (sketch.tensor(_CHANNELS, _FLOAT, name=name) for name in ("scale", "bias"))
    epsilon, momentum = sketch.value(0.05), sketch.value(0.25)
    y = sketch.norm(_NORMS.BATCH_NORM, x, epsilon, scale, bias, momentum=momentum)
    return sketch.pointwise(_MODES.ADD, y, sketch.tensor(_IMAGE, _HALF, name="residual"))


def _backward(
    sketch: Sketch, mode: NormMode, dims: tuple[int, ...], parameter: tuple[int, ...], groups: int = 0
) -> None:
    """Behind the gradient of an activation, before an addition."""
    x, given = (sketch.tensor(dims, _FLOAT, name=name) for name in ("x", "given"))
    scale = sketch.tensor(parameter, _FLOAT, name="scale")
    dy = sketch.pointwise(_MODES.MUL, given, sketch.tensor(dims, _HALF, name="slope"))
    dx = sketch.norm_backward(mode, x, dy, scale, groups=groups)
    _positive_spread(sketch)
    sketch.pointwise(_MODES.ADD, dx, sketch.tensor(dims, _HALF, name="other"), store=_FLOAT)


def _positive_spread(sketch: Sketch) -> None:
    """Inverse standard deviations are above 0."""
    for op in sketch.operations:
        if isinstance(op, NormBackward) and op.inv_variance is not None:
            inverse = op.inv_variance
            sketch.values[inverse.uid] = np.linspace(0.5, 2.0, inverse.element_count).reshape(inverse.dims)


def batch_norm_backward(sketch: Sketch) -> None:
    x, dy = (sketch.tensor(_IMAGE, _HALF, name=name) for name in ("x", "dy"))
    dx = sketch.norm_backward(_NORMS.BATCH_NORM, x, dy, sketch.tensor(_CHANNELS, _FLOAT, name="scale"))
    _positive_spread(sketch)
    sketch.pointwise(_MODES.NEG, dx, store=_HALF)


def masked_batch_norm_backward(sketch: Sketch) -> None:
    """dy behind a mask of bits."""
    x, given = (sketch.tensor(_IMAGE, _HALF, name=name) for name in ("x", "dy"))
    mask, zero = sketch.tensor(_IMAGE, DataType.BOOLEAN, name="mask"), sketch.constant(4, _FLOAT, 0.0)
    dy = sketch.pointwise(_MODES.BINARY_SELECT, given, zero, mask)
    sketch.norm_backward(_NORMS.BATCH_NORM, x, dy, sketch.tensor(_CHANNELS, _FLOAT, name="scale"), store=_HALF)
    _positive_spread(sketch)


def bn_finalize(sketch: Sketch) -> None:
    given = {name: sketch.tensor(_CHANNELS, _FLOAT, name=name) for name in ("sum", "scale", "bias")}
    squares = sketch.holding(np.full(_CHANNELS, 60.0), _FLOAT, name="squares")
    made = [sketch.tensor(_CHANNELS, _FLOAT, name=name) for name in ("eq_scale", "eq_bias", "mean", "inv_std")]
    running = [sketch.tensor(_CHANNELS, _FLOAT, name=name) for name in ("mean_in", "var_in", "mean_out", "var_out")]
    count = sketch.value(12.0, name="count")
    sketch.compound(
        BnFinalize(
            BnFinalizeStatsMode.TRAINING,
            _FLOAT,
            sum=given["sum"],
            sum_of_squares=squares,
            scale=given["scale"],
            bias=given["bias"],
            eq_scale=made[0],
            eq_bias=made[1],
            mean=made[2],
            inv_std=made[3],
            epsilon=sketch.value(0.05, name="epsilon"),
            exp_avg_factor=sketch.value(0.25, name="momentum"),
            accum_count=count,
            input_running_mean=running[0],
            input_running_var=running[1],
            output_running_mean=running[2],
            output_running_var=running[3],
        )
    )


def bn_backward_weights(sketch: Sketch) -> None:
    x, dy = (sketch.tensor(_IMAGE, _HALF, name=name) for name in ("x", "dy"))
    given = {name: sketch.tensor(_CHANNELS, _FLOAT, name=name) for name in ("mean", "scale")}
    inverse = sketch.holding(np.reshape([0.5, 1.0, 1.5, 2.0], _CHANNELS), _FLOAT, name="inv_std")
    made = {
        name: sketch.tensor(_CHANNELS, _FLOAT, name=name)
        for name in ("dscale", "dbias", "eq_dy_scale", "eq_x_scale", "eq_bias")
    }
    sketch.compound(BnBackwardWeights(_FLOAT, x=x, dy=dy, inv_std=inverse, **given, **made))


def layer_norm_backward(sketch: Sketch) -> None:
    _backward(sketch, _NORMS.LAYER_NORM, _MATRIX, _COLUMNS)


def rms_norm_backward(sketch: Sketch) -> None:
    _backward(sketch, _NORMS.RMS_NORM, _MATRIX, _COLUMNS)


def group_norm_backward(sketch: Sketch) -> None:
    _backward(sketch, _NORMS.GROUP_NORM, _IMAGE, _CHANNELS, 2)


PATTERNS: Mapping[str, Known] = {
    **taken_by("norm_rows", layer_norm, rms_norm, ada_layer_norm, instance_norm, group_norm),
    **taken_by("norm_rows batch_norm", batch_norm, batch_norm_backward),
    **taken_by("composite", masked_batch_norm, masked_batch_norm_backward),
    **taken_by("batch_norm", bn_finalize, bn_backward_weights),
    **taken_by("norm_rows", layer_norm_backward, rms_norm_backward, group_norm_backward),
}
