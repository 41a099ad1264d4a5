"""The backward pass of a norm: dx in one launch over rows, and the gradients of scale and bias.

The gradients of scale and bias are sums over rows, in one of three ways:

- Layer and RMS norms have a scale for each element of a row. The launch sums the gradients over the rows of each block
  (``norm_backward_summing.cu``), and a second launch adds the blocks' sums.
- Others have a scale for each row, or for the same row of all samples. The launch stores each row's sums, which dx
needs
  anyway (``norm_backward.cu``), and a second launch adds those of the samples.
- Otherwise the gradients are reductions of x and dy (``engines.reduction``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.codegen.space import IndexSpace, collapsed, strides_over
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import bytes_of, i64, is_dependent, moved_bytes
from lowdnn.engines.norm.join import Join
from lowdnn.engines.norm.peers import Peers
from lowdnn.engines.norm.split import (
    is_of_rows,
    row_shapes,
    split_dag,
    split_operation,
    split_tensor,
)
from lowdnn.engines.norm.summing import Summing, SummingTile
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.engines.relocation import moved
from lowdnn.engines.rows import policy
from lowdnn.engines.rows.kernel import RowKernel, share
from lowdnn.engines.rows.layout import RowLayout, RowSpace, fused_space, reading
from lowdnn.engines.rows.next_row import NextRow
from lowdnn.engines.rows.on_chip import OnChip, again_of
from lowdnn.engines.rows.register_cache import RegisterCache
from lowdnn.engines.rows.tile import NEXT_ROW, RING, tile_of
from lowdnn.enums import DIM_MAX, DataType, KnobType, NormMode, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of
from lowdnn.graph.row_pattern import FusedRows, match_rows
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.norm import NormShape
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import Launch, Struct, WorkspacePointer

_REDUCTION = ReductionEngine()
_GRADIENTS = {"dscale": "SCALE", "dbias": "BIAS"}


@dataclass(frozen=True)
class BackwardRows:
    """One backward norm with its fused operations, and the axes of its kernel."""

    operation: NormBackward
    #: The axes of a row: those of a single channel, if the space has group rows.
    shape: NormShape
    #: The operation's tensors by port, with group norm's channels split into two axes if rows are whole groups.
    tensors: dict[str, Tensor]
    #: The tensors for each row's part of dscale and dbias, if the sums that dx needs are these parts.
    sums: dict[str, Tensor]
    before: PointwiseDag
    after: PointwiseDag
    space: RowSpace

    @staticmethod
    def of(graph: OperationGraph) -> BackwardRows | str:
        """The graph as one backward norm with pointwise operations around it, or why it is not one."""
        fused = match_rows(graph, NormBackward, "dy", "dx")
        if isinstance(fused, str):
            return fused
        operation, shape = fused.operation, fused.operation.shape
        if len(shape.split(operation.x.dims)) > DIM_MAX:
            return f"x.dims: expected at most {DIM_MAX - 1} axes with groups of channels, got {operation.x.rank}"
        sums_channels = operation.dscale is not None
        for rows, group_rows in row_shapes(shape, operation.x, sums_channels):
            found = BackwardRows._over(fused, rows, group_rows, last_uid=max(graph.tensors))
            if found.space.group_rows == group_rows:
                break
        # A thread can sum the gradients only if it has the same elements of all rows, which a skew would shift.
        return replace(found, space=replace(found.space, skew=())) if found._may_sum_gradients else found

    @staticmethod
    def _over(fused: FusedRows[NormBackward], shape: NormShape, group_rows: int, last_uid: int) -> BackwardRows:
        operation = fused.operation
        ports = inputs_of(operation) | outputs_of(operation)
        own = {port: split_tensor(tensor, shape) for port, tensor in ports.items() if port != "epsilon"}
        before = split_dag(fused.before, shape)
        after = dag_of(own["dx"].dims, tuple(split_operation(op, shape) for op in fused.after), anchor=own["dx"])
        sums = _sums_of_rows(operation, shape, last_uid)
        of_rows = (split_tensor(tensor, shape) for tensor in sums.values())
        space = fused_space((before, after), shape.axes, (*own.values(), *of_rows), group_rows)
        return BackwardRows(operation, shape, own, sums, before, after, space)

    @property
    def compute_type(self) -> DataType:
        return self.operation.compute_type

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """dscale and dbias, as far as they are wanted."""
        return tuple(self.tensors[port] for port in ("dscale", "dbias") if port in self.tensors)

    @cached_property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.space, (self.before, self.after), self.tensors["x"])

    @cached_property
    def peers(self) -> Peers:
        return Peers(self.operation.peer_stats, self.compute_type)

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        if self._may_sum_gradients:
            return self._summing(arch).knobs
        return policy.knobs(self.layout, self.peers.seen(arch), self._cache)

    def plan(self, arch: ArchSpec, chosen: Choices) -> PlanParts:
        chain = PlanParts()
        summing = self._summing(arch).tile(chosen) if self._may_sum_gradients else None
        if summing is not None:
            self._add_summing(chain, arch, summing)
        elif self.layout.row_groups:
            self._add_rows(chain, arch, chosen)
        if summing is None and not self._row_sums:
            for port in ("dscale", "dbias"):
                if port in self.tensors:
                    graph = OperationGraph(self._gradient(port))
                    chain.add_plan(_REDUCTION.plan(graph, arch, {}), {})
        return chain

    @property
    def _cache(self) -> RegisterCache:
        return RegisterCache.of(
            self.compute_type,
            reading(self.tensors["x"]),
            self.before,
            streamed=int(self._is_scaled),
            shifts=True,
            keeps_chunks=True,
            looks_ahead=not self._may_sum_gradients,
        )

    @property
    def _read(self) -> tuple[tuple[Tensor, ...], ...]:
        """The tensors that are read for each element, by functor."""
        return (self.tensors["x"],), self.before.loads

    def _summing(self, arch: ArchSpec) -> Summing:
        tensors = self.tensors
        return Summing(
            self.layout,
            arch,
            self.compute_type,
            self._cache,
            gradients=len(self.gradients),
            elements=self._read,
            numbers=tuple(tensors[port] for port in ("inv_variance", "mean") if port in tensors),
            scale=tensors.get("scale"),
        )

    @cached_property
    def _may_sum_gradients(self) -> bool:
        """Whether the launch over rows can also sum dscale and dbias.

        Scale and bias must have one element for each element of a row, and a thread the same elements of each row.
        Without dscale, dbias is a reduction of its own.
        """
        strides = [self.space.space.strides[tensor.uid][: self.space.kept] for tensor in self.gradients]
        repeats = all(not any(row) for row in strides)
        row_elements = all(tensor.element_count == self.space.count for tensor in self.gradients)
        is_enough = self.space.is_row and self.layout.row_groups > 0 and self.space.count > 0
        return "dscale" in self.tensors and not self.sums and repeats and row_elements and is_enough

    @property
    def _scale_is_of_rows(self) -> bool:
        """Whether the scale has one element for each row."""
        scale = self.tensors.get("scale")
        return scale is not None and is_of_rows(scale, self.shape)

    @property
    def _is_centred(self) -> bool:
        return self.operation.mode is not NormMode.RMS_NORM

    @property
    def _is_scaled(self) -> bool:
        """Whether each element has a scale."""
        return self.operation.scale is not None and not self._scale_is_of_rows

    @property
    def _row_sums(self) -> dict[str, Tensor]:
        """The tensors for the rows' sums; none if there are no rows."""
        return self.sums if self.layout.row_groups else {}

    def _add_summing(self, chain: PlanParts, arch: ArchSpec, chosen: SummingTile) -> None:
        """Adds the launch for dx, which also sums the gradients, and the one that adds its blocks' sums."""
        operation, space, gradients = self.operation, self.space, self.gradients
        again = again_of(self.layout, self.before, self.compute_type, copies=True) if self.before.stores else ()
        count, element_bytes = chosen.blocks // chosen.tile.CLUSTER, dtypes.info(self.compute_type).size_bytes
        offsets = tuple(chain.reserve(count * space.count * element_bytes) for _ in gradients)
        overlaps = is_dependent(arch)
        join = Join(gradients, space.row_space, self.compute_type, count, offsets, overlaps)
        kernel = RowKernel(
            source="norm/norm_backward_summing.cu",
            data_type=operation.x.data_type,
            compute_type=self.compute_type,
            layout=self.layout,
            tile=chosen.tile,
            switches=(
                ("CENTRED", int(self._is_centred)),
                ("SCALED", int(self._is_scaled)),
                ("GRADIENTS", len(gradients)),
                ("STAGES", chosen.stages),
                ("CACHES_ROW", int(chosen.caches_row)),
                ("SCALES", chosen.scales),
                ("IS_WHOLE", int(chosen.tile.is_whole(self.layout))),
                ("AGAIN", int(bool(again))),
            ),
            functors=(*self._functors(copies=True, with_statistics=True), *again),
            scalars=(
                share(operation.shape.count, self.compute_type),
                Struct(tuple(WorkspacePointer(offset) for offset in offsets)),
            ),
        )
        number, moved = chain.kernel(kernel.kernel), self._moved_bytes + join.partial_bytes
        chain.launches.append(kernel.launch(number, operation.flops, moved, chosen.blocks, chosen.shared_bytes))
        joining, arguments = join.kernel_and_arguments()
        chain.launches.append(join.launch(chain.kernel(joining), arguments))

    def _add_rows(self, chain: PlanParts, arch: ArchSpec, chosen: Choices) -> None:
        """Adds the launch for dx, and whatever completes the gradients from its rows' sums."""
        operation, shape = self.operation, tile_of(self.layout, chosen, self._cache)
        peers, arch = self.peers, self.peers.seen(arch)
        # Rows whose gradients the launch could sum are not prefetched if it does not.
        x, wanted = self.tensors["x"], chosen.get(KnobType.READ_AHEAD, 0)
        on_chip = OnChip(
            shape, self.layout, self.compute_type, arch, self.before, (x,), is_ring_wanted=wanted == RING
        ).fitted()
        shape = on_chip.tile
        ahead = NextRow(shape, self.layout, arch, self._read, wanted == NEXT_ROW)
        kernel = RowKernel(
            source="norm/norm_backward_pipelined.cu" if on_chip.is_pipelined else "norm/norm_backward.cu",
            data_type=operation.x.data_type,
            compute_type=self.compute_type,
            layout=self.layout,
            tile=shape,
            switches=(
                ("CENTRED", int(self._is_centred)),
                ("SCALED", int(self._is_scaled)),
                ("ROW_SCALE", int(self._scale_is_of_rows)),
                *((f"{name}_GRADIENT", int(port in self._row_sums)) for port, name in _GRADIENTS.items()),
                *on_chip.switches,
                *ahead.switches,
                *peers.switches,
            ),
            functors=(*self._functors(on_chip.keeps_chunks or ahead.is_ahead), *on_chip.again()),
            scalars=(
                share(peers.count * operation.shape.count, self.compute_type),
                *i64((on_chip.slots,)),
                *on_chip.partials(chain),
                *peers.arguments,
            ),
            needs_newer=on_chip.is_pipelined,
            roles=on_chip.roles,
        )
        moved = self._moved_bytes + bytes_of(self._row_sums.values()) + on_chip.bytes_read_again
        number, shared_bytes = chain.kernel(kernel.kernel), on_chip.shared_bytes + ahead.shared_bytes
        blocks = peers.blocks(shape, self.layout, arch, ahead.blocks or on_chip.blocks)
        launch = kernel.launch(number, operation.flops, moved, blocks, shared_bytes)
        self._add_with_sums(chain, arch, peers.launched(launch))

    def _add_with_sums(self, chain: PlanParts, arch: ArchSpec, launch: Launch) -> None:
        """Adds the launch, and the reduction of the sums that it stores for rows with a common scale."""
        gradients = outputs_of(self.operation)
        parts = {port: row for port, row in self._row_sums.items() if row.uid != gradients[port].uid}
        offsets_of = {row.uid: chain.reserve(row.span_bytes) for row in parts.values()}
        chain.launches.append(replace(launch, arguments=tuple(moved(own, offsets_of, 0) for own in launch.arguments)))
        if parts and all(_is_of_samples(row, gradients[port]) for port, row in parts.items()):
            totals = tuple(gradients[port] for port in parts)
            overlaps = is_dependent(arch) and not launch.cooperative
            offsets, count = tuple(offsets_of.values()), self.shape.stats_dims[0]
            join = Join(totals, _channels(totals), self.compute_type, count, offsets, overlaps)
            joining, arguments = join.kernel_and_arguments()
            chain.launches.append(join.launch(chain.kernel(joining), arguments))
            return
        for port, row in parts.items():
            total = OperationGraph([self._sum(row, gradients[port])])
            chain.add_plan(_REDUCTION.plan(total, arch, {}), offsets_of)

    @property
    def _moved_bytes(self) -> int:
        """Bytes read, and bytes of dx; dy counts once if the DAG before the norm reads it."""
        operands = (tensor for tensor in inputs_of(self.operation).values() if not tensor.is_virtual)
        again = bytes_of(t for t in self.before.loads if t.uid == self.operation.dy.uid)
        return moved_bytes(self.before) + moved_bytes(self.after) + bytes_of(operands) - again

    def _functors(self, copies: bool, with_statistics: bool = False) -> tuple[Functor, ...]:
        """copies: whether elements are read from shared memory.  with_statistics: whether rows' numbers are too."""
        space, compute_type, tensors = self.space, self.compute_type, self.tensors
        functors = [
            space.load(tensors["x"], compute_type, "Data", copies=copies),
            space.functor(self.before, "Prologue", None, compute_type, copies=copies),
            space.functor(self.after, "Epilogue", compute_type, None),
            space.load_of_row(tensors["inv_variance"], compute_type, "Inverse", copies=with_statistics),
        ]
        if "mean" in tensors:
            functors.append(space.load_of_row(tensors["mean"], compute_type, "Mean", copies=with_statistics))
        if "scale" in tensors:
            load = space.load_of_row if self._scale_is_of_rows else space.load
            functors.append(load(tensors["scale"], compute_type, "Scale"))
        for port, tensor in self._row_sums.items():
            functors.append(space.store_of_row(tensor, compute_type, f"{_GRADIENTS[port].title()}Gradient"))
        return tuple(functors)

    def _gradient(self, port: str) -> list[Operation]:
        """The operations that compute dscale or dbias as a sum over the axes of x along which it repeats."""
        tensors, uid = self.tensors, self._free_uid
        operations: list[Operation] = list(self.before.operations) if tensors["dy"].is_virtual else []
        if port == "dbias":
            return [*operations, self._sum(tensors["dy"], tensors["dbias"])]
        steps = [(PointwiseMode.SUB, "mean")] if "mean" in tensors else []
        value = tensors["x"]
        for mode, operand in (*steps, (PointwiseMode.MUL, "inv_variance"), (PointwiseMode.MUL, "dy")):
            output = replace(tensors["x"], uid=uid, data_type=self.compute_type, alignment_bytes=16, is_virtual=True)
            arithmetic = Pointwise(mode, self.compute_type)
            operations.append(PointwiseOperation(arithmetic, x=value, b=tensors[operand], y=output))
            value, uid = output, uid + 1
        return [*operations, self._sum(value, tensors["dscale"])]

    def _sum(self, x: Tensor, y: Tensor) -> ReductionOperation:
        return ReductionOperation(Reduction(ReduceTensorOp.ADD, self.compute_type), x=x, y=y)

    @property
    def _free_uid(self) -> int:
        """The first uid after those of the operation and of the operations before it."""
        before = (output.uid for op in self.before.operations for output in outputs_of(op).values())
        return 1 + max(*(tensor.uid for tensor in self.tensors.values()), *before)


def _is_of_samples(sums: Tensor, gradient: Tensor) -> bool:
    """Whether ``sums`` has one number for each sample and each element of the gradient."""
    return gradient.rank > 1 and gradient.dims == (1, *sums.dims[1:])


def _channels(gradients: tuple[Tensor, ...]) -> IndexSpace:
    """The axes of gradients with one number for each channel."""
    dims = gradients[0].dims
    strides = {tensor.uid: strides_over(tensor, dims) for tensor in gradients}
    return collapsed(IndexSpace(dims, strides, tuple((axis,) for axis in range(len(dims)))), alone={1})


def _sums_of_rows(operation: NormBackward, shape: NormShape, last_uid: int) -> dict[str, Tensor]:
    """Tensors for each row's part of dscale and dbias, if scale and bias have one element for a whole row.

    They are the gradients themselves if no two rows share an element.
    """
    gradients = {port: tensor for port, tensor in outputs_of(operation).items() if port in _GRADIENTS}
    if any(not is_of_rows(split_tensor(tensor, shape), shape) for tensor in gradients.values()):
        return {}
    dims, compute_type = shape.stats_dims, operation.compute_type
    return {
        port: tensor if tensor.dims == dims else Tensor(uid, compute_type, dims, packed_strides(dims), 16)
        for uid, (port, tensor) in enumerate(gradients.items(), last_uid + 1)
    }
