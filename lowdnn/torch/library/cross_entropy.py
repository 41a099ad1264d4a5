"""Cross entropy of logits that never become probabilities in memory:

lse = log(sum of exp(x) over the classes)        loss = lse - x[target]        dx = (exp(x - lse) - [target]) dloss
"""

from __future__ import annotations

from typing import Any

import torch

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.softmax import Softmax
from lowdnn.status import BadParamError
from lowdnn.torch.library.definition import Definition, check_floats, check_shape, wide_type
from lowdnn.torch.operation import Arguments, Overload, Result
from lowdnn.torch.sketch import Sketch, compute_type_of
from lowdnn.torch.sketch import check_floats as decline_other_types

_DLOSS, _X, _TARGET, _LSE = range(4)
_REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(x: Any, target: Any, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """The cross entropy of logits x (rows, classes) with the classes ``target`` (rows,) in INT64.

    One pass over x forward, and one backward; nothing of x's size is kept but x. The loss is in fp32, or in fp64 for
    fp64. Rows whose target is ``ignore_index`` count for nothing.
    reduction: ``mean`` over the other rows, ``sum``, or ``none`` for the losses (rows,).
    Raises BadParamError for other shapes and types.
    """
    where = "cross_entropy"
    check_floats(where, x=x)
    check_shape(where, "x", x, (None, None), "[rows, classes]")
    if not isinstance(target, torch.Tensor) or target.dtype != torch.int64:
        got = target.dtype if isinstance(target, torch.Tensor) else type(target).__name__
        raise BadParamError.at("torch.ops.cross_entropy.target", expected="a tensor of int64", got=got)
    check_shape(where, "target", target, (x.shape[0],), f"[{x.shape[0]}], the rows of x")
    if reduction not in _REDUCTIONS:
        expected = ", ".join(_REDUCTIONS)
        raise BadParamError.at("torch.ops.cross_entropy.reduction", expected=expected, got=repr(reduction))
    losses, _ = torch.ops.lowdnn.cross_entropy(x, target, ignore_index)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (target != ignore_index).sum()


def log_sum_exp(x: Any) -> Any:
    """log(sum of exp(x)) over the last axis, in fp32, or in fp64 for fp64: x.shape[:-1]. Differentiable."""
    check_floats("log_sum_exp", x=x)
    check_shape("log_sum_exp", "x", x, (None,) * max(x.dim(), 1), "[..., classes]")
    return torch.ops.lowdnn.log_sum_exp(x)


def _read_sum(x: Any) -> Arguments:
    return (x,), ()


def _sketched_sum(sketch: Sketch) -> Result:
    (x,) = sketch.tensors
    decline_other_types(x)
    place = sketch.allocate(x.shape[:-1], wide_type(x))
    source = sketch.at(0)
    weights = sketch.virtual(source.dims, source.data_type)
    stats = sketch.at(place, (*source.dims[:-1], 1))
    sketch.add(Softmax(source, weights, stats=stats, axes=(source.rank - 1,)))
    sketch.end_step()
    return place


def _plain_sum(x: Any) -> Any:
    return x.to(wide_type(x)).logsumexp(-1)


def _plain(x: Any, target: Any, ignore_index: int) -> tuple[Any, Any]:
    sums = torch.ops.lowdnn.log_sum_exp(x)
    is_ignored = target == ignore_index
    classes = target.masked_fill(is_ignored, 0)
    losses = sums - x.gather(1, classes[:, None])[:, 0].to(sums.dtype)
    return losses.masked_fill(is_ignored, 0.0), sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, target, ctx.ignore_index = inputs
    ctx.save_for_backward(x, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, dloss: Any, _: Any) -> Any:
    x, target, sums = ctx.saved_tensors
    kept = dloss.masked_fill(target == ctx.ignore_index, 0.0)
    return torch.ops.lowdnn.cross_entropy_backward(kept, x, target, sums), None, None


def _read_backward(dloss: Any, x: Any, target: Any, lse: Any) -> Arguments:
    return (dloss, x, target, lse), ()


def _sketched_backward(sketch: Sketch) -> Result:
    dloss, x, target, lse = sketch.tensors
    decline_other_types(x)
    rows, classes = x.shape
    place = sketch.allocate(x.shape, x.dtype)
    source, mode = sketch.at(_X), PointwiseMode
    compute = compute_type_of(source.data_type)
    steps = [(rows, 1), (dloss.stride(0), 1)], [(rows, 1), (target.stride(0), 1)], [(rows, 1), (lse.stride(0), 1)]
    gradient, wanted, sums = (
        sketch.at(own, *layout) for own, layout in zip((_DLOSS, _TARGET, _LSE), steps, strict=True)
    )
    dims = (rows, classes)
    shifted = sketch.pointwise(mode.SUB, sketch.virtual(dims, compute), source, sums)
    weights = sketch.pointwise(mode.EXP, sketch.virtual(dims, compute), shifted)
    index = sketch.pointwise(mode.GEN_INDEX, sketch.virtual(dims, DataType.INT64), source, axis=1)
    is_target = sketch.pointwise(mode.CMP_EQ, sketch.virtual(dims, compute), index, wanted)
    difference = sketch.pointwise(mode.SUB, sketch.virtual(dims, compute), weights, is_target)
    sketch.pointwise(mode.MUL, sketch.at(place), difference, gradient)
    sketch.end_step()
    return place


def _plain_backward(dloss: Any, x: Any, target: Any, lse: Any) -> Any:
    weights = (x.to(lse.dtype) - lse[:, None]).exp()
    is_target = torch.arange(x.shape[1], device=x.device) == target[:, None]
    return ((weights - is_target.to(lse.dtype)) * dloss[:, None]).to(x.dtype).contiguous()


def _differentiable_backward(dloss: Any, x: Any, target: Any, lse: Any) -> Any:
    return _plain_backward(dloss, x, target, _plain_sum(x))


def _overload(name: str, read: Any, sketched: Any) -> Overload:
    return Overload(f"lowdnn::{name}", "cross_entropy", read, sketched, keys=("CPU",))


DEFINITIONS = (
    Definition(
        "log_sum_exp", "(Tensor x) -> Tensor", _plain_sum, _overload("log_sum_exp", _read_sum, _sketched_sum)
    ),
    Definition(
        "cross_entropy", "(Tensor x, Tensor target, int ignore_index) -> (Tensor, Tensor)", _plain, None, _save,
        _backward,
    ),
    Definition(
        "cross_entropy_backward", "(Tensor dloss, Tensor x, Tensor target, Tensor lse) -> Tensor", _plain_backward,
        _overload("cross_entropy_backward", _read_backward, _sketched_backward),
        differentiable=_differentiable_backward,
    ),
)  # fmt: skip
