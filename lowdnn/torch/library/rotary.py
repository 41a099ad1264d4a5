"""Rotary position embedding of queries or keys.

With theta = angles[s, i] and R angles for each position, the last R elements of each row are pairs (i, i + R / 2):

    y[i] = scale * (x[i] cos theta - x[i + R / 2] sin theta)
    y[i + R / 2] = scale * (x[i + R / 2] cos theta + x[i] sin theta)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.status import BadParamError
from lowdnn.torch.library.definition import Definition, check_floats, check_shape, wide_type
from lowdnn.torch.operation import Arguments, Overload, Result
from lowdnn.torch.sketch import Declined, Sketch, strides_like

_X, _ANGLES = range(2)
_WHERE = "rotary_embedding"


def rotary_embedding(x: Any, angles: Any, scale: float = 1.0) -> Any:
    """x with rotated pairs, times ``scale``: a tensor of x's shape, strides and type.

    x: (batch, heads, positions, size) of floats, in any strides.  angles: (positions, R) in radians, usually fp32, with
    an even R up to the size; the second half of each row repeats the first, and is not read. Elements before the last R
    are only scaled.
    The gradient is that of x. Raises BadParamError for other shapes and types.
    Source: Su et al., "RoFormer: Enhanced transformer with rotary position embedding".
    """
    check_floats(_WHERE, x=x, angles=angles)
    check_shape(_WHERE, "x", x, (None,) * 4, "[batch, heads, positions, size]")
    positions, size = x.shape[2:]
    check_shape(_WHERE, "angles", angles, (positions, None), f"[{positions}, R]")
    if angles.shape[1] % 2 or not 0 < angles.shape[1] <= size:
        where = f"torch.ops.{_WHERE}.angles.shape[1]"
        raise BadParamError.at(where, expected=f"an even number from 2 to {size}", got=angles.shape[1])
    return torch.ops.lowdnn.rotary_embedding(x, angles, scale)


def _read(x: Any, angles: Any, scale: float) -> Arguments:
    return (x, angles), (scale,)


def _sketched(operation: Callable[..., Any]) -> Callable[..., Result]:
    def sketched(sketch: Sketch, scale: float) -> Result:
        x, angles = sketch.tensors
        if len(x.shape) != 4 or len(angles.shape) != 2:
            raise Declined(f"dims {list(x.shape)} with angles {list(angles.shape)}")
        positions, count = angles.shape
        rows, columns = angles.stride()
        y = sketch.allocate(x.shape, x.dtype, strides_like(x))
        freqs = sketch.at(_ANGLES, (positions, 1, 1, count), (rows, rows, rows, columns))
        sketch.add(operation(sketch.at(_X), sketch.at(y), freqs, scale, count))
        sketch.end_step()
        return y

    return sketched


def _plain(sign: float) -> Callable[..., Any]:
    """sign: 1 rotates by the angles, -1 back."""

    def plain(x: Any, angles: Any, scale: float) -> Any:
        count, wide = angles.shape[1], wide_type(x)
        theta = angles[:, : count // 2].to(wide)
        cosine, sine = theta.cos(), sign * theta.sin()
        passed, low, high = (x.to(wide) * scale).split((x.shape[3] - count, count // 2, count // 2), -1)
        rotated = torch.cat((passed, low * cosine - high * sine, high * cosine + low * sine), -1)
        return torch.empty_like(x).copy_(rotated)

    return plain


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, angles, ctx.scale = inputs
    ctx.save_for_backward(angles)


def _backward(ctx: Any, dy: Any) -> Any:
    (angles,) = ctx.saved_tensors
    return torch.ops.lowdnn.rotary_embedding_backward(dy, angles, ctx.scale), None, None


def _second_backward(ctx: Any, gradient: Any) -> Any:
    """Rotating back is a linear function, whose gradient rotates forth."""
    (angles,) = ctx.saved_tensors
    return torch.ops.lowdnn.rotary_embedding(gradient, angles, ctx.scale), None, None


def _overload(name: str, operation: Callable[..., Any]) -> Overload:
    return Overload(f"lowdnn::{name}", "rotary_embedding", _read, _sketched(operation), keys=("CPU",))


DEFINITIONS = (
    Definition(
        "rotary_embedding", "(Tensor x, Tensor angles, float scale) -> Tensor", _plain(1.0),
        _overload("rotary_embedding", RopeForward), _save, _backward,
    ),
    Definition(
        "rotary_embedding_backward", "(Tensor dy, Tensor angles, float scale) -> Tensor", _plain(-1.0),
        _overload("rotary_embedding_backward", RopeBackward), _save, _second_backward,
    ),
)  # fmt: skip
