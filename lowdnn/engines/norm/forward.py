"""The forward pass of a norm as one launch over rows (``norm_forward.cu``, ``norm_forward_turns.cu``).

Scale and bias of elements are the first pointwise operations behind the normalised value, and the running statistics of
batch normalisation pointwise operations behind mean and variance: so every type, stride and repetition comes from the
code generator, and what the graph has behind y joins them. A scale and a bias of rows are read once for each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import bytes_of, i64, is_dependent, moved_bytes
from lowdnn.engines.norm.running import carried_on
from lowdnn.engines.norm.split import (
    is_of_rows,
    row_shapes,
    split_dag,
    split_operation,
    split_tensor,
)
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rows import policy
from lowdnn.engines.rows.held import Held
from lowdnn.engines.rows.kernel import RowKernel, number, scalar_argument, share
from lowdnn.engines.rows.layout import RowLayout, RowSpace, fused_space
from lowdnn.engines.rows.next_row import NextRow
from lowdnn.engines.rows.on_chip import OnChip
from lowdnn.engines.rows.packed_row import Packing
from lowdnn.engines.rows.teams import are_independent
from lowdnn.engines.rows.tile import NEXT_ROW, RING, RowTile, tile_of
from lowdnn.enums import DIM_MAX, DataType, KnobType, NormFwdPhase, NormMode, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of
from lowdnn.graph.row_pattern import FusedRows, match_rows
from lowdnn.ops.base import outputs_of
from lowdnn.ops.norm import NormShape, unbiased_factor
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument

#: uids of values inside the kernel; graphs cannot have negative ones.
_NORMALISED, _SCALED, _VARIANCE, _EXACT = -1, -2, -3, -4
#: Registers of a thread where more than one tensor is read behind a row's elements, and for the sample of a row.
_BEHIND_REGISTERS, _SAMPLE_REGISTERS = 8, 8


@dataclass(frozen=True)
class ForwardRows:
    """One norm with what is fused with it, and how the kernel walks over it.

    shape: which says what a row is: one of joined rows, where the space has these.
    """

    operation: NormForward
    shape: NormShape
    before: PointwiseDag
    after: PointwiseDag
    space: RowSpace

    @staticmethod
    def of(graph: OperationGraph) -> ForwardRows | str:
        """The graph as one forward norm with pointwise operations around it, or why it is not one."""
        fused = match_rows(graph, NormForward, "x", "y")
        if isinstance(fused, str):
            return fused
        operation, shape = fused.operation, fused.operation.shape
        if len(shape.split(operation.x.dims)) > DIM_MAX:
            return f"x.dims: expected at most {DIM_MAX - 1} axes with groups of channels, got {operation.x.rank}"
        for rows, joined in row_shapes(shape, operation.x, operation.scale is not None):
            found = ForwardRows._over(fused, rows, joined)
            is_side_by_side = joined > 1 and found.space.is_row and not are_independent(found.layout)
            if found.space.joined == joined and not is_side_by_side:
                break
        return found

    @staticmethod
    def _over(fused: FusedRows[NormForward], shape: NormShape, joined: int) -> ForwardRows:
        operation = fused.operation
        before, after = split_dag(fused.before, shape), _after(fused, shape)
        of_rows = (*outputs_of(operation).values(), *operation.running, *_row_parameters(operation, shape).values())
        others = [split_tensor(tensor, shape) for tensor in of_rows]
        space = fused_space((before, after), shape.axes, others, joined)
        return ForwardRows(operation, shape, before, after, space)

    @property
    def compute_type(self) -> DataType:
        return self.operation.compute_type

    @cached_property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.space, (self.before, self.after))

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        return policy.knobs(self.layout, arch, self._held)

    def plan(self, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, none where there are no rows."""
        chain, operation = PlanParts(), self.operation
        if not self.layout.row_groups:
            return chain
        shape = tile_of(self.layout, chosen, self._held)
        wanted = chosen[KnobType.READ_AHEAD]
        on_chip = self._on_chip(shape, arch, is_ring_wanted=wanted == RING)
        shape = on_chip.tile
        ahead = NextRow(shape, self.layout, arch, (self.before.loads,), wanted == NEXT_ROW)
        copies = on_chip.stays or ahead.is_ahead
        is_alone = self.space.is_line and shape.CLUSTER == shape.SHARING == 1
        overlaps = is_dependent(arch) and is_alone
        packed = None if copies else shape.packed(self.layout, self._held)
        is_lone = shape.blocks(self.layout) * shape.slots >= self.layout.row_groups
        is_whole = packed is not None and packed.may_be_whole and is_lone and shape.is_whole(self.layout)
        parameters = _row_parameters(operation, self.shape)
        kernel = RowKernel(
            source="norm/norm_forward_turns.cu" if on_chip.is_in_turns else "norm/norm_forward.cu",
            data_type=operation.x.data_type,
            compute_type=self.compute_type,
            layout=self.layout,
            tile=shape,
            switches=(
                ("CENTRED", int(operation.mode is not NormMode.RMS_NORM)),
                ("TRAINING", int(operation.phase is NormFwdPhase.TRAINING)),
                ("RUNNING", int(bool(operation.running))),
                ("HAS_EXTREMES", int(operation.has_extremes)),
                *((f"ROW_{name}", int(name in parameters)) for name in ("SCALE", "BIAS")),
                *on_chip.switches,
                *ahead.switches,
                ("IS_WHOLE", int(is_whole)),
                ("OPERANDS_AHEAD", 0 if packed is None else packed.ahead),
                ("OVERLAPS_PREVIOUS", int(overlaps)),
            ),
            needs_newer=overlaps or on_chip.is_in_turns,
            functors=(
                self.space.functor(self.before, "Prologue", None, self.compute_type, copies),
                *on_chip.again(),
                self.space.functor(self.after, "Epilogue", self.compute_type, None),
                *self._parameters,
                *self._statistics,
            ),
            scalars=(*self._scalars(on_chip), *on_chip.partials(chain)),
            roles=on_chip.roles,
        )
        statistics = [t for t in (*outputs_of(operation).values(), *operation.running) if t.uid != operation.y.uid]
        of_rows = bytes_of((*statistics, *parameters.values()))
        moved = moved_bytes(self.before) + moved_bytes(self.after) + of_rows + on_chip.bytes_read_again
        reference, shared_bytes = chain.kernel(kernel.kernel), on_chip.shared_bytes + ahead.shared_bytes
        launch = kernel.launch(reference, operation.flops, moved, ahead.blocks or on_chip.blocks, shared_bytes)
        chain.launches.append(replace(launch, overlaps_previous=overlaps))
        return chain

    def _on_chip(self, shape: RowTile, arch: ArchSpec, *, is_ring_wanted: bool) -> OnChip:
        return OnChip(
            shape,
            self.layout,
            self.compute_type,
            arch,
            self.before,
            is_ring_wanted=is_ring_wanted,
            has_extremes=self.operation.has_extremes,
        ).fitted()

    def _scalars(self, on_chip: OnChip) -> tuple[Argument, ...]:
        """Epsilon, shares of the elements in the sample of a row and in a row, and how the sample is spread."""
        shape, sampled, count = on_chip.tile, on_chip.sampled_members, self.operation.shape.count
        first_elements = shape.first_groups(self.layout, sampled) * (self.layout.vector if self.space.is_row else 1)
        return (
            scalar_argument(self.operation.epsilon, self.compute_type),
            share(first_elements * (1 if shape.is_apart else self.space.joined), self.compute_type),
            share(count, self.compute_type),
            number(unbiased_factor(count), self.compute_type),
            *i64((on_chip.slots, max(1, self.layout.groups // sampled))),
        )

    @property
    def _held(self) -> Held:
        """Of rows side by side also what is read behind them. The meeting for an estimate of the mean costs the larger
        teams of narrow rows more than these gain."""
        is_wide = dtypes.info(self.operation.x.data_type).size_bytes >= 4
        beside = _BEHIND_REGISTERS if self.space.is_line and len(self.after.loads) > 1 else 0
        held = Held.of(
            self.compute_type,
            self.before,
            beside=beside,
            shared=_SAMPLE_REGISTERS,
            shifts=True,
            stays=True,
            looks_ahead=True,
            spreads=is_wide or self.operation.mode is NormMode.RMS_NORM,
        )
        held = replace(held, packing=self._packing)
        return held if self.space.is_row or not self.after.loads else replace(held, values=2)

    @property
    def _packing(self) -> Packing | None:
        """The packing of rows that have nothing but scale and bias behind them."""
        operands, strides = self.after.loads, self.space.space.strides
        is_same = all(not any(strides[tensor.uid][: self.space.kept]) for tensor in operands)
        if not operands or not is_same or len(self.after.operations) != len(operands):
            return None
        return Packing(len(operands), self.operation.mode is not NormMode.RMS_NORM)

    @property
    def _parameters(self) -> tuple[Functor, ...]:
        """Scale and bias where each row has one."""
        return tuple(
            self.space.load_of_row(split_tensor(tensor, self.shape), self.compute_type, name.title())
            for name, tensor in _row_parameters(self.operation, self.shape).items()
        )

    @property
    def _statistics(self) -> tuple[Functor, ...]:
        """What is stored of each row."""
        operation = self.operation
        mean, inverse = (t and split_tensor(t, self.shape) for t in (operation.mean, operation.inv_variance))
        functors = []
        if mean is not None:
            functors.append(self._of_row("Mean", mean, operation.input_running_mean, operation.output_running_mean))
        if inverse is not None:
            functors.append(self._of_row("Inverse", inverse))
        if operation.running and mean is not None:
            variance = replace(mean, uid=_VARIANCE, data_type=self.compute_type, alignment_bytes=16, is_virtual=True)
            running = (operation.input_running_var, operation.output_running_var)
            functors.append(self._of_row("Variance", variance, *running))
        return tuple(functors)

    def _of_row(self, name: str, value: Tensor, before: Tensor | None = None, after: Tensor | None = None) -> Functor:
        """The functor that stores one number of each row, and the running statistics from it before it is rounded."""
        operations: tuple[PointwiseOperation, ...] = ()
        factor, exact = self.operation.exp_avg_factor, value
        if before is not None and after is not None and factor is not None:
            if value.data_type is not self.compute_type:
                exact = replace(value, uid=_EXACT, data_type=self.compute_type, alignment_bytes=16, is_virtual=True)
                rounding = Pointwise(PointwiseMode.IDENTITY, self.compute_type)
                operations = (PointwiseOperation(rounding, x=exact, y=value),)
            operations += carried_on(exact, factor, before, after, self.compute_type, count(_EXACT - 1, -1))
        dag = dag_of(value.dims, operations, anchor=exact)
        axis, space = self.space.kept - 1, self.space.kept_space
        return generate(dag, accumulator=self.compute_type, vector_axis=axis, space=space, name=name)


def _row_parameters(operation: NormForward, shape: NormShape) -> dict[str, Tensor]:
    """SCALE and BIAS, those that there are, where each row has one."""
    given = {"SCALE": operation.scale, "BIAS": operation.bias}
    found = {name: tensor for name, tensor in given.items() if tensor is not None}
    are_of_rows = all(is_of_rows(split_tensor(tensor, shape), shape) for tensor in found.values())
    return found if are_of_rows else {}


def _after(fused: FusedRows[NormForward], shape: NormShape) -> PointwiseDag:
    """What is behind the kernel's value: times scale, plus bias, where elements have their own; then what the graph has
    behind y."""
    operation = fused.operation
    y, compute_type = split_tensor(operation.y, shape), operation.compute_type
    of_elements = [(PointwiseMode.MUL, operation.scale), (PointwiseMode.ADD, operation.bias)]
    steps = [] if _row_parameters(operation, shape) else of_elements
    wanted = [(mode, split_tensor(tensor, shape)) for mode, tensor in steps if tensor is not None]
    value = anchor = replace(
        y, uid=_NORMALISED, data_type=compute_type, alignment_bytes=16, is_virtual=True, name="normalised"
    )
    operations = []
    for step, (mode, operand) in enumerate(wanted, 1):
        output = y if step == len(wanted) else replace(anchor, uid=_SCALED, name="scaled")
        operations.append(PointwiseOperation(Pointwise(mode, compute_type), x=value, b=operand, y=output))
        value = output
    behind = tuple(split_operation(op, shape) for op in fused.after)
    return dag_of(y.dims, (*operations, *behind), anchor=anchor if wanted else y)
