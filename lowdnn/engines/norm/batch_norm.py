"""``batch_norm``: batch normalisation as reductions over all but the channels and a pointwise pass.

A channel is too long for a team of threads, and there are too few of them for the device, so statistics are split over
blocks (``engines.reduction``):

    forward    shift = average of the first image;  sums of x - shift and of its square, from these mean and variance;
               y = (x - mean) * inverse * scale + bias
    backward   dscale = sum of dy * xhat;  dbias = sum of dy;
               dx = (dy - (dbias + xhat * dscale) / count) * inverse * scale

Since the sums are of deviations from about the mean, a large mean costs them nothing: x is read twice, and the first
image a third time. Statistics that are stored in a narrow type lie in the workspace too, in the type of the arithmetic.
What the graph has behind y or dx is part of the last pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Engine, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.engines.rows.chain import Chain
from lowdnn.enums import DataType, NormMode, NumericalNote, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.row_pattern import FusedRows, match_rows
from lowdnn.ops.base import Operation
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import KernelRef, Plan

_REDUCTION, _POINTWISE = ReductionEngine(), PointwiseEngine()


class BatchNorm:
    """See the module's docstring."""

    name = "batch_norm"
    index = 22
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses what is not one batch norm with pointwise operations behind it, and parts that their engines do."""
        passes = graph.derive(self._passes)
        if isinstance(passes, Refusal):
            return passes
        refusals = (part.engine.refuse(part.graph, arch) for part in passes.parts)
        found = next((refusal for refusal in refusals if refusal is not None), None)
        return None if found is None else replace(found, engine=self.name)

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None: every pass runs with its engine's defaults."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """The launches of the passes, in order."""
        passes = accepted(graph.derive(self._passes))
        chosen, chain = resolve_choices(self.name, (), choices), Chain()
        offsets = {tensor.uid: chain.reserve(tensor.span_bytes) for tensor in passes.in_workspace}
        for part in passes.parts:
            chain.add(part.engine.plan(part.graph, arch, {}), offsets)
        return plan_of(self, graph, arch, chosen, chain.kernels, tuple(chain.launches), chain.workspace_bytes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None of its own."""
        return ()

    def _passes(self, graph: OperationGraph) -> _Passes | Refusal:
        is_backward = any(isinstance(op, NormBackward) for op in graph.operations)
        ports = ("dy", "dx") if is_backward else ("x", "y")
        fused: FusedRows[NormForward] | FusedRows[NormBackward] | str
        fused = match_rows(graph, NormBackward, *ports) if is_backward else match_rows(graph, NormForward, *ports)
        if isinstance(fused, str):
            return Refusal(self.name, fused)
        if fused.operation.mode is not NormMode.BATCH_NORM:
            return Refusal(self.name, f"mode: expected BATCH_NORM, got {fused.operation.mode.name}")
        if not fused.operation.x.element_count:
            return Refusal(self.name, f"x.dims: expected elements, got {list(fused.operation.x.dims)}")
        if fused.before.operations:
            return Refusal(self.name, f"operations: expected none before {ports[0]}, which is read twice, got one")
        builder = _Builder(fused.operation.x, fused.operation.compute_type, max(graph.tensors))
        operation = fused.operation
        return (
            builder.backward(operation, fused.after)
            if isinstance(operation, NormBackward)
            else builder.forward(operation, fused.after)
        )


@dataclass(frozen=True)
class _Part:
    engine: Engine
    graph: OperationGraph


@dataclass(frozen=True)
class _Passes:
    """The passes in order, and the tensors between them that the graph has not."""

    parts: tuple[_Part, ...]
    in_workspace: tuple[Tensor, ...]


class _Builder:
    """Writes the passes; new tensors have uids after ``last_uid``."""

    def __init__(self, x: Tensor, compute_type: DataType, last_uid: int) -> None:
        self._x = x
        self._compute_type = compute_type
        self._last_uid = last_uid
        self._operations: list[Operation] = []
        self._parts: list[_Part] = []
        self._in_workspace: list[Tensor] = []

    def forward(self, norm: NormForward, behind: tuple[PointwiseOperation, ...]) -> _Passes:
        shape, modes = norm.shape, PointwiseMode
        shift, correction, total, squares = (self._exact(None, shape.stats_dims) for _ in range(4))
        inverse = self._exact(norm.inv_variance, shape.stats_dims)
        first_image = replace(self._x, dims=(1, *self._x.dims[1:]))
        average = self._virtual(shape.stats_dims)
        self._reduce(ReduceTensorOp.AVG, first_image, average)
        self._finite(average, shift)
        self._close(_REDUCTION)
        self._operations.append(
            GenStats(self._pointwise(modes.SUB, self._x, shift), total, squares, self._compute_type)
        )
        self._close(_REDUCTION)

        share = 1 / shape.count
        self._pointwise(modes.IDENTITY, total, output=correction, factor=share)
        square = self._pointwise(modes.MUL, correction, correction)
        variance = self._pointwise(modes.SUB, self._pointwise(modes.IDENTITY, squares, factor=share), square)
        self._pointwise(modes.RSQRT, self._pointwise(modes.ADD, variance, norm.epsilon), output=inverse)
        self._store(inverse, norm.inv_variance)
        mean = self._pointwise(modes.ADD, shift, correction)
        self._store(mean, norm.mean)
        if norm.running:
            unbiased = self._pointwise(modes.IDENTITY, variance, factor=shape.count / max(shape.count - 1, 1))
            self._carry_on(mean, norm, norm.input_running_mean, norm.output_running_mean)
            self._carry_on(unbiased, norm, norm.input_running_var, norm.output_running_var)
        self._close(_POINTWISE)

        steps = [(modes.SUB, shift), (modes.SUB, correction), (modes.MUL, inverse)]
        steps += [(mode, t) for mode, t in ((modes.MUL, norm.scale), (modes.ADD, norm.bias)) if t is not None]
        return self._last_pass(self._x, steps, norm.y, behind)

    def backward(self, norm: NormBackward, behind: tuple[PointwiseOperation, ...]) -> _Passes:
        shape, modes = norm.shape, PointwiseMode
        mean, inverse = (t for t in (norm.mean, norm.inv_variance) if t is not None)

        def normalised() -> Tensor:
            return self._pointwise(modes.MUL, self._pointwise(modes.SUB, self._x, mean), inverse)

        dscale, dbias = (self._exact(tensor, shape.stats_dims) for tensor in (norm.dscale, norm.dbias))
        self._reduce(ReduceTensorOp.ADD, self._pointwise(modes.MUL, normalised(), norm.dy), dscale)
        self._store(dscale, norm.dscale)
        self._close(_REDUCTION)
        self._reduce(ReduceTensorOp.ADD, norm.dy, dbias)
        self._store(dbias, norm.dbias)
        self._close(_REDUCTION)

        common = self._pointwise(modes.ADD, self._pointwise(modes.MUL, normalised(), dscale), dbias)
        centred = self._pointwise(modes.SUB, norm.dy, common, factor=1 / shape.count)
        steps = [(modes.MUL, tensor) for tensor in (inverse, norm.scale) if tensor is not None]
        return self._last_pass(centred, steps, norm.dx, behind)

    def _finite(self, value: Tensor, output: Tensor) -> None:
        """``value``, or 0 where it is no finite number: deviations from it would be none either."""
        rest = self._pointwise(PointwiseMode.SUB, value, value)
        is_finite = self._pointwise(PointwiseMode.CMP_EQ, rest, rest)
        zero = replace(self._virtual((1,) * value.rank), is_virtual=False, constant_value=0.0)
        select = Pointwise(PointwiseMode.BINARY_SELECT, self._compute_type)
        self._operations.append(PointwiseOperation(select, x=value, b=zero, t=is_finite, y=output))

    def _last_pass(
        self,
        value: Tensor,
        steps: list[tuple[PointwiseMode, Tensor]],
        output: Tensor,
        behind: tuple[PointwiseOperation, ...],
    ) -> _Passes:
        for mode, operand in steps[:-1]:
            value = self._pointwise(mode, value, operand)
        self._pointwise(steps[-1][0], value, steps[-1][1], output=output)
        self._operations += behind
        self._close(_POINTWISE)
        return _Passes(tuple(self._parts), tuple(self._in_workspace))

    def _carry_on(self, value: Tensor, norm: NormForward, before: Tensor | None, after: Tensor | None) -> None:
        """Running statistics: before + factor * (value - before)."""
        if before is not None and after is not None and norm.exp_avg_factor is not None:
            step = self._pointwise(PointwiseMode.SUB, value, before)
            share = self._pointwise(PointwiseMode.MUL, step, norm.exp_avg_factor)
            self._pointwise(PointwiseMode.ADD, before, share, output=after)

    def _close(self, engine: Engine) -> None:
        """The operations so far are one pass."""
        self._parts.append(_Part(engine, OperationGraph(self._operations)))
        self._operations = []

    def _reduce(self, operator: ReduceTensorOp, x: Tensor, y: Tensor) -> None:
        self._operations.append(ReductionOperation(Reduction(operator, self._compute_type), x=x, y=y))

    def _store(self, value: Tensor, wanted: Tensor | None) -> None:
        """A copy of ``value`` in a tensor of the graph, where it is not that tensor itself."""
        if wanted is not None and wanted.uid != value.uid:
            self._pointwise(PointwiseMode.IDENTITY, value, output=wanted)

    def _pointwise(
        self, mode: PointwiseMode, x: Tensor, b: Tensor | None = None, output: Tensor | None = None, factor: float = 1.0
    ) -> Tensor:
        """factor: of the last operand."""
        dims = x.dims if b is None or x.element_count >= b.element_count else b.dims
        y = self._virtual(dims) if output is None else output
        alpha1, alpha2 = (factor, 1.0) if b is None else (1.0, factor)
        arithmetic = Pointwise(mode, self._compute_type)
        self._operations.append(PointwiseOperation(arithmetic, x=x, b=b, y=y, alpha1=alpha1, alpha2=alpha2))
        return y

    def _exact(self, wanted: Tensor | None, dims: tuple[int, ...]) -> Tensor:
        """A statistic in memory in the type of the arithmetic: ``wanted`` itself, or one in the workspace."""
        if wanted is not None and wanted.data_type is self._compute_type:
            return wanted
        tensor = replace(self._virtual(dims), is_virtual=False)
        self._in_workspace.append(tensor)
        return tensor

    def _virtual(self, dims: tuple[int, ...]) -> Tensor:
        self._last_uid += 1
        strides = self._x.strides if dims == self._x.dims else packed_strides(dims)
        return Tensor(self._last_uid, self._compute_type, dims, strides, 16, is_virtual=True)
