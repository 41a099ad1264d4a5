"""Inputs of a benchmark case that follow from others, as far as random ones would make no sense."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lowdnn.cases.base import Case
from lowdnn.cases.families.attention_backward import AttentionBackwardCase
from lowdnn.cases.families.recurrent import RnnCase
from lowdnn.cases.families.rows import SoftmaxCase
from lowdnn.enums import NormMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.resample_backward import ResampleBackward
from tools.bench.peers.flash import flash_attention
from tools.bench.saved_states import saved_states

#: Under the root of a variance.
_EPSILON = 1e-5


def related(case: Case, graph: OperationGraph, drawn: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Values by the input's name, from the random ones of one copy.

    Places of maxima: any in the image. Statistics of a norm: those of x. Results of a softmax: of numbers in their
    place. Results of attention: FlashAttention-2's. Tensors that a recurrent network saves in its forward pass.
    """
    operation = graph.operations[0]
    if isinstance(operation, ResampleBackward) and operation.index is not None:
        return {"index": _places(operation, drawn["index"].device)}
    if isinstance(operation, NormBackward):
        return _statistics(operation, drawn["x"])
    if isinstance(case, SoftmaxCase) and case.dir == "bwd":
        softmax = torch.log_softmax if case.log == "yes" else torch.softmax
        return {"y": softmax(drawn["y"].float(), case.axes[0] if case.axes else -1)}
    if isinstance(case, AttentionBackwardCase):
        # FlashAttention-2 takes no fp8, all values of which bf16 has.
        q, k, v = (drawn[name].bfloat16() if case.is_fp8 else drawn[name] for name in ("q", "k", "v"))
        o, log_sum_exp = flash_attention(q, k, v, is_causal=case.right == 0, left=case.left)
        return {"o": o, "stats": log_sum_exp.unsqueeze(3)}
    if isinstance(case, RnnCase) and case.dir == "bwd":
        return {name: values for name, values in saved_states(case.rnn, drawn).items() if name in drawn}
    return {}


def _statistics(operation: NormBackward, x: torch.Tensor) -> dict[str, torch.Tensor]:
    shape = operation.shape
    rows = x.float().reshape(shape.split(operation.x.dims))
    if operation.mode is NormMode.RMS_NORM:
        mean, variance = None, rows.square().mean(shape.axes, keepdim=True)
    else:
        variance, mean = torch.var_mean(rows, shape.axes, correction=0, keepdim=True)
    inverse = {"inv_variance": variance.add_(_EPSILON).rsqrt_().reshape(shape.stats_dims)}
    return inverse if mean is None else inverse | {"mean": mean.reshape(shape.stats_dims)}


def _places(operation: ResampleBackward, device: torch.device) -> torch.Tensor:
    """A random place for each window's maximum, inside the image."""
    place = torch.zeros((), device=device, dtype=torch.int64)
    for number, axis in enumerate(operation.axes):
        starts = torch.arange(axis.outputs, device=device) * axis.step - axis.offset
        first = starts.div(axis.unit, rounding_mode="floor")
        end = (starts + axis.reach).div(axis.unit, rounding_mode="floor")
        least, most = (-first).clamp_min(0), torch.minimum(end, torch.tensor(axis.inputs, device=device)) - first
        shape = [1] * operation.dy.rank
        shape[2 + number] = axis.outputs
        share = torch.rand(operation.dy.dims, device=device)
        tap = least.view(shape) + (share * (most - least).view(shape)).long()
        place = place * axis.span + tap
    return place
