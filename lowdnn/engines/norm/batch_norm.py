"""``batch_norm``: batch normalisation as reductions over all axes but the channels, and a pointwise pass.

It takes what the single launch of ``norm_rows`` does not suit. Its sums are split over blocks (``engines.reduction``):

    forward    shift = average of the first image
               mean and variance from the sums of x - shift and of its square
               y = (x - mean) * inverse * scale + bias

    backward   dscale = sum of dy * xhat
               dbias = sum of dy
               dx = (dy - (dbias + xhat * dscale) / count) * inverse * scale

Since deviations from about the mean are summed, a large mean costs no accuracy. x is read twice, and the first image a
third time. Statistics that are stored in a narrow type also lie in the workspace, in the type of the arithmetic.
Operations after y or dx are part of the last pass.

It also takes ``BnFinalize`` and ``BnBackwardWeights``, parts of batch normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Refusal
from lowdnn.engines.floor import Rereading
from lowdnn.engines.launch import bytes_of
from lowdnn.engines.limits import fused
from lowdnn.engines.norm.passes import PassBuilder, Passes
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, NormMode, NumericalNote, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.row_pattern import match_rows
from lowdnn.ops.base import Operation
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.norm import unbiased_factor
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor

_After = tuple[PointwiseOperation, ...]


class BatchNorm(ProblemEngine[Passes], Rereading):
    """Batch normalisation in several passes, as the module's docstring says."""

    name = "batch_norm"
    index = 22
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    anchors: Anchors = (NormForward, NormBackward, BnFinalize, BnBackwardWeights)
    limits = fused(*anchors)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> Passes | Refusal:
        """Refuses what is not one batch norm with operations after it, and passes that their engines refuse."""
        passes = self._matched(graph)
        if isinstance(passes, Refusal):
            return passes
        refusals = (part.engine.refuse(part.graph, arch) for part in passes.parts)
        found = next((refusal for refusal in refusals if refusal is not None), None)
        return passes if found is None else replace(found, engine=self.name)

    def reread_bytes(self, graph: OperationGraph) -> int:
        """Bytes of x, read once for the sums and once for the result, and of dy, which each of two sums reads."""
        forward = sum(bytes_of((op.x,)) for op in graph.operations if isinstance(op, NormForward))
        backward = (op for op in graph.operations if isinstance(op, NormBackward))
        return forward + sum(bytes_of((op.x, op.dy)) + bytes_of((op.dy,)) for op in backward)

    def parts(self, passes: Passes, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The launches of the passes, in order."""
        parts = PlanParts()
        offsets = {tensor.uid: parts.reserve(tensor.span_bytes) for tensor in passes.in_workspace}
        for part in passes.parts:
            parts.add_plan(part.engine.plan(part.graph, arch, {}), offsets)
        return parts

    def _matched(self, graph: OperationGraph) -> Passes | Refusal:
        kind = next((type(op) for op in graph.operations if type(op) in _RECIPES), NormForward)
        source, output, recipe = _RECIPES[kind]
        fused = match_rows(graph, kind, source, output)
        if isinstance(fused, str):
            return Refusal(self.name, fused)
        operation = fused.operation
        if isinstance(operation, NormForward | NormBackward) and operation.mode is not NormMode.BATCH_NORM:
            return Refusal(self.name, f"mode: expected BATCH_NORM, got {operation.mode.name}")
        if isinstance(operation, NormForward | NormBackward) and len(operation.peer_stats) > 1:
            return Refusal(self.name, f"peer_stats: expected at most one, got {len(operation.peer_stats)}")
        if kind in (NormForward, NormBackward) and 0 in fused.before.dims:
            return Refusal(self.name, f"{source}.dims: expected elements, got {list(fused.before.dims)}")
        if fused.before.operations:
            return Refusal(self.name, f"operations: expected none before {source}, which is read twice, got one")
        if fused.after and kind not in (NormForward, NormBackward):
            return Refusal(self.name, f"operations: expected none after {kind.__name__}, got one")
        return recipe(operation, fused.after, max(graph.tensors))


def _forward(norm: NormForward, after: _After, last_uid: int) -> Passes:
    """The passes of the forward norm; sums are in DOUBLE if those of x or of its squares may exceed FLOAT."""
    shape, modes, build = norm.shape, PointwiseMode, PassBuilder(norm.compute_type, last_uid)
    shift, correction = (build.exact(None, shape.stats_dims) for _ in range(2))
    inverse = build.exact(norm.inv_variance, shape.stats_dims)
    build.compute_in(DataType.DOUBLE if norm.has_extremes else norm.compute_type)
    average = build.of_dims(shape.stats_dims)
    build.reduce(ReduceTensorOp.AVG, replace(norm.x, dims=(1, *norm.x.dims[1:])), average)
    build.finite(average, shift)  # deviations from infinity would be NaN
    build.close_reduction()

    total, squares = (build.exact(None, shape.stats_dims) for _ in range(2))
    build.gen_stats(build.pointwise(modes.SUB, norm.x, shift), total, squares)
    build.close_reduction()

    build.pointwise(modes.IDENTITY, total, output=correction, factor=1 / shape.count)
    square = build.pointwise(modes.MUL, correction, correction)
    variance = build.pointwise(modes.SUB, build.pointwise(modes.IDENTITY, squares, factor=1 / shape.count), square)
    build.pointwise(modes.RSQRT, build.pointwise(modes.ADD, variance, norm.epsilon), output=inverse)
    build.store(inverse, norm.inv_variance)
    mean = build.pointwise(modes.ADD, shift, correction)
    build.store(mean, norm.mean)
    spread = build.pointwise(modes.IDENTITY, variance, factor=unbiased_factor(shape.count))
    build.carry_on(mean, norm.exp_avg_factor, norm.input_running_mean, norm.output_running_mean)
    build.carry_on(spread, norm.exp_avg_factor, norm.input_running_var, norm.output_running_var)
    build.close_pointwise()

    build.compute_in(norm.compute_type)
    steps = [(modes.SUB, shift), (modes.SUB, correction), (modes.MUL, inverse)]
    steps += [(mode, t) for mode, t in ((modes.MUL, norm.scale), (modes.ADD, norm.bias)) if t is not None]
    return _last_pass(build, norm.x, steps, norm.y, after)


def _backward(norm: NormBackward, after: _After, last_uid: int) -> Passes:
    shape, build = norm.shape, PassBuilder(norm.compute_type, last_uid)
    mean, inverse = (t for t in (norm.mean, norm.inv_variance) if t is not None)
    dscale, dbias = _sums(build, norm.x, norm.dy, (mean, inverse), (norm.dscale, norm.dbias))
    xhat = _normalised(build, norm.x, mean, inverse)
    common = build.pointwise(PointwiseMode.ADD, build.pointwise(PointwiseMode.MUL, xhat, dscale), dbias)
    centred = build.pointwise(PointwiseMode.SUB, norm.dy, common, factor=1 / shape.count)
    steps = [(PointwiseMode.MUL, tensor) for tensor in (inverse, norm.scale) if tensor is not None]
    return _last_pass(build, centred, steps, norm.dx, after)


def _weights(weights: BnBackwardWeights, after: _After, last_uid: int) -> Passes:
    modes, build = PointwiseMode, PassBuilder(weights.compute_type, last_uid)
    statistics, gradients = (weights.mean, weights.inv_std), (weights.dscale, weights.dbias)
    dscale, dbias = _sums(build, weights.x, weights.dy, statistics, gradients)
    share = 1 / weights.count if weights.count else inf
    of_dy = build.pointwise(modes.MUL, weights.scale, weights.inv_std)
    build.store(of_dy, weights.eq_dy_scale)
    slope = build.pointwise(modes.MUL, build.pointwise(modes.MUL, of_dy, weights.inv_std), dscale)
    of_x = build.pointwise(modes.IDENTITY, slope, factor=-share)
    build.store(of_x, weights.eq_x_scale)
    constant = build.pointwise(modes.IDENTITY, build.pointwise(modes.MUL, of_dy, dbias), factor=-share)
    build.pointwise(modes.SUB, constant, build.pointwise(modes.MUL, of_x, weights.mean), output=weights.eq_bias)
    build.close_pointwise()
    return build.passes()


def _finalize(final: BnFinalize, after: _After, last_uid: int) -> Passes:
    """The operations of BnFinalize, in DOUBLE: the variance is a difference of large numbers."""
    modes, build = PointwiseMode, PassBuilder(DataType.DOUBLE, last_uid)
    one = replace(build.of_dims((1,) * final.sum.rank), is_virtual=False, constant_value=1.0)
    share = build.pointwise(modes.RECIPROCAL, final.accum_count)
    others = build.pointwise(modes.MAX, build.pointwise(modes.SUB, final.accum_count, one), one)
    share_of_others = build.pointwise(modes.RECIPROCAL, others)
    mean = build.pointwise(modes.MUL, final.sum, share)
    square = build.pointwise(modes.MUL, mean, mean)
    variance = build.pointwise(modes.SUB, build.pointwise(modes.MUL, final.sum_of_squares, share), square)
    inverse = build.pointwise(modes.RSQRT, build.pointwise(modes.ADD, variance, final.epsilon))
    scale = build.pointwise(modes.MUL, final.scale, inverse)
    build.store(mean, final.mean)
    build.store(inverse, final.inv_std)
    build.store(scale, final.eq_scale)
    build.pointwise(modes.SUB, final.bias, build.pointwise(modes.MUL, mean, scale), output=final.eq_bias)
    build.carry_on(mean, final.exp_avg_factor, final.input_running_mean, final.output_running_mean)
    if final.exp_avg_factor is not None:
        total = build.pointwise(modes.MUL, variance, final.accum_count)
        spread = build.pointwise(modes.MUL, total, share_of_others)
        build.carry_on(spread, final.exp_avg_factor, final.input_running_var, final.output_running_var)
    build.close_pointwise()
    return build.passes()


def _normalised(build: PassBuilder, x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    return build.pointwise(PointwiseMode.MUL, build.pointwise(PointwiseMode.SUB, x, mean), inverse)


def _sums(
    build: PassBuilder,
    x: Tensor,
    dy: Tensor,
    statistics: tuple[Tensor, Tensor],
    wanted: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor]:
    """(sum of dy * xhat, sum of dy), each computed by a separate pass."""
    dscale, dbias = (build.exact(tensor, statistics[0].dims) for tensor in wanted)
    terms = build.pointwise(PointwiseMode.MUL, _normalised(build, x, *statistics), dy)
    for value, total, stored in ((terms, dscale, wanted[0]), (dy, dbias, wanted[1])):
        build.reduce(ReduceTensorOp.ADD, value, total)
        build.store(total, stored)
        build.close_reduction()
    return dscale, dbias


def _last_pass(
    build: PassBuilder, value: Tensor, steps: list[tuple[PointwiseMode, Tensor]], output: Tensor, after: _After
) -> Passes:
    for mode, operand in steps[:-1]:
        value = build.pointwise(mode, value, operand)
    build.pointwise(steps[-1][0], value, steps[-1][1], output=output)
    build.add(after)
    build.close_pointwise()
    return build.passes()


#: For each operation: the input that must be in memory, the output that may have operations after it, and its recipe.
_RECIPES: Mapping[type[Operation], tuple[str, str, Callable[[Any, _After, int], Passes]]] = {
    NormForward: ("x", "y", _forward),
    NormBackward: ("dy", "dx", _backward),
    BnFinalize: ("sum", "eq_bias", _finalize),
    BnBackwardWeights: ("dy", "eq_bias", _weights),
}
