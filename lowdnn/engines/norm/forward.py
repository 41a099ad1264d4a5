"""The forward pass of a norm as one launch over rows (``norm_forward.cu``, ``norm_forward_pipelined.cu``).

If each element of a row has a scale and a bias, they are the first pointwise operations of the epilogue. The running
statistics of batch normalisation are pointwise operations on mean and variance. The code generator thus handles their
types, strides and repetition, together with the graph's operations after y. A scale and a bias of a whole row are read
once for each row.
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
from lowdnn.engines.norm.peers import Peers
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
from lowdnn.engines.rows.kernel import RowKernel, number, scalar_argument, share
from lowdnn.engines.rows.layout import RowLayout, RowSpace, fused_space
from lowdnn.engines.rows.next_row import NextRow
from lowdnn.engines.rows.on_chip import OnChip
from lowdnn.engines.rows.packed_row import Packing
from lowdnn.engines.rows.register_cache import RegisterCache
from lowdnn.engines.rows.teams import have_own_teams
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

#: The uid of the normalised value in the kernel; uids here are negative, which no tensor of a graph has.
_NORMALISED = -1
#: The uid of the scaled value in the kernel.
_SCALED = -2
#: The uid of the variance in the kernel.
_VARIANCE = -3
#: The uid of a statistic in the kernel before it is rounded.
_EXACT = -4
#: Registers of a thread for its epilogue, if that reads more than one tensor for each element.
_EPILOGUE_REGISTERS = 8
#: Registers of a thread for the sample of a row, from which the first estimate of the mean follows.
_SAMPLE_REGISTERS = 8


@dataclass(frozen=True)
class ForwardRows:
    """One norm with its fused operations, and the axes of its kernel.

    shape: the axes of a row: of a single channel, if the space has group rows.
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
        for rows, group_rows in row_shapes(shape, operation.x, operation.scale is not None):
            found = ForwardRows._over(fused, rows, group_rows)
            is_side_by_side = group_rows > 1 and found.space.is_row and not have_own_teams(found.layout)
            if found.space.group_rows == group_rows and not is_side_by_side:
                break
        return found

    @staticmethod
    def _over(fused: FusedRows[NormForward], shape: NormShape, group_rows: int) -> ForwardRows:
        operation = fused.operation
        before, after = split_dag(fused.before, shape), _after(fused, shape)
        of_rows = (*outputs_of(operation).values(), *operation.running, *_row_parameters(operation, shape).values())
        others = [split_tensor(tensor, shape) for tensor in of_rows]
        space = fused_space((before, after), shape.axes, others, group_rows)
        return ForwardRows(operation, shape, before, after, space)

    @property
    def compute_type(self) -> DataType:
        return self.operation.compute_type

    @cached_property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.space, (self.before, self.after))

    @cached_property
    def peers(self) -> Peers:
        return Peers(self.operation.peer_stats, self.compute_type)

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        return policy.knobs(self.layout, self.peers.seen(arch), self._cache)

    def plan(self, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, or none if there are no rows."""
        chain, operation, peers, arch = PlanParts(), self.operation, self.peers, self.peers.seen(arch)
        if not self.layout.row_groups:
            return chain
        shape = tile_of(self.layout, chosen, self._cache)
        wanted = chosen[KnobType.READ_AHEAD]
        on_chip = self._on_chip(shape, arch, is_ring_wanted=wanted == RING)
        shape = on_chip.tile
        ahead = NextRow(shape, self.layout, arch, (self.before.loads,), wanted == NEXT_ROW)
        copies = on_chip.keeps_chunks or ahead.is_ahead
        is_alone = not peers.are_there and self.space.is_line and shape.CLUSTER == shape.SHARING == 1
        overlaps = is_dependent(arch) and is_alone
        packed = None if copies else shape.packed(self.layout, self._cache)
        blocks = peers.blocks(shape, self.layout, arch, ahead.blocks or on_chip.blocks)
        is_lone = (blocks or shape.blocks(self.layout)) * shape.slots >= self.layout.row_groups
        is_whole = packed is not None and packed.may_be_whole and is_lone and shape.is_whole(self.layout)
        parameters = _row_parameters(operation, self.shape)
        kernel = RowKernel(
            source="norm/norm_forward_pipelined.cu" if on_chip.is_pipelined else "norm/norm_forward.cu",
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
                *peers.switches,
            ),
            needs_newer=overlaps or on_chip.is_pipelined,
            functors=(
                self.space.functor(self.before, "Prologue", None, self.compute_type, copies),
                *on_chip.again(),
                self.space.functor(self.after, "Epilogue", self.compute_type, None),
                *self._parameters,
                *self._statistics,
            ),
            scalars=(*self._scalars(on_chip), *on_chip.partials(chain), *peers.arguments),
            roles=on_chip.roles,
        )
        statistics = [t for t in (*outputs_of(operation).values(), *operation.running) if t.uid != operation.y.uid]
        of_rows = bytes_of((*statistics, *parameters.values()))
        moved = moved_bytes(self.before) + moved_bytes(self.after) + of_rows + on_chip.bytes_read_again
        reference, shared_bytes = chain.kernel(kernel.kernel), on_chip.shared_bytes + ahead.shared_bytes
        launch = kernel.launch(reference, operation.flops, moved, blocks, shared_bytes)
        chain.launches.append(peers.launched(replace(launch, overlaps_previous=overlaps)))
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
        """Epsilon; 1 / the elements in the sample of a row, and in a row; the unbiased factor, over all peers; the
        sample's stride."""
        shape, sampled, count = on_chip.tile, on_chip.sampled_members, self.operation.shape.count
        whole_count = self.peers.count * count
        first_elements = shape.first_groups(self.layout, sampled) * (self.layout.vector if self.space.is_row else 1)
        return (
            scalar_argument(self.operation.epsilon, self.compute_type),
            share(first_elements * (1 if shape.is_group_spread else self.space.group_rows), self.compute_type),
            share(count, self.compute_type),
            number(unbiased_factor(whole_count), self.compute_type),
            *i64((on_chip.slots, max(1, self.layout.groups // sampled))),
        )

    @property
    def _cache(self) -> RegisterCache:
        """The numbers that the kernel caches of an element; the epilogue's operands are further ones of rows side by
        side. value.

        Teams that spread a row wait longer for the estimate of its mean, which larger teams of narrow rows cannot
        afford.
        """
        is_wide = dtypes.info(self.operation.x.data_type).size_bytes >= 4
        extra = _EPILOGUE_REGISTERS if self.space.is_line and len(self.after.loads) > 1 else 0
        cache = RegisterCache.of(
            self.compute_type,
            self.before,
            extra_registers=extra,
            sharing_registers=_SAMPLE_REGISTERS,
            shifts=True,
            keeps_chunks=True,
            looks_ahead=True,
            spreads=is_wide or self.operation.mode is NormMode.RMS_NORM,
        )
        cache = replace(cache, packing=self._packing)
        return cache if self.space.is_row or not self.after.loads else replace(cache, values=2)

    @property
    def _packing(self) -> Packing | None:
        """The packing of rows whose epilogue is only a scale and a bias for each element."""
        operands, strides = self.after.loads, self.space.space.strides
        is_same = all(not any(strides[tensor.uid][: self.space.kept]) for tensor in operands)
        if not operands or not is_same or len(self.after.operations) != len(operands):
            return None
        return Packing(len(operands), self.operation.mode is not NormMode.RMS_NORM)

    @property
    def _parameters(self) -> tuple[Functor, ...]:
        """The functors that read the scale and the bias of each row, if rows have them."""
        return tuple(
            self.space.load_of_row(split_tensor(tensor, self.shape), self.compute_type, name.title())
            for name, tensor in _row_parameters(self.operation, self.shape).items()
        )

    @property
    def _statistics(self) -> tuple[Functor, ...]:
        """The functors that store the statistics of each row."""
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
        """The functor that stores one number for each row, and updates the running statistic before it is rounded."""
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
    """The tensors of SCALE and BIAS that exist, if they have one element for each row; otherwise none."""
    given = {"SCALE": operation.scale, "BIAS": operation.bias}
    found = {name: tensor for name, tensor in given.items() if tensor is not None}
    are_of_rows = all(is_of_rows(split_tensor(tensor, shape), shape) for tensor in found.values())
    return found if are_of_rows else {}


def _after(fused: FusedRows[NormForward], shape: NormShape) -> PointwiseDag:
    """The epilogue: times scale, plus bias, if each element has its own; then the graph's operations after y."""
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
    after = tuple(split_operation(op, shape) for op in fused.after)
    return dag_of(y.dims, (*operations, *after), anchor=anchor if wanted else y)
