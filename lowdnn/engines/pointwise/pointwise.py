"""``pointwise``: any DAG of pointwise operations and random numbers over one index space, in one launch.

Axes are in the order of the first output's strides, and merged if all tensors allow, so that a packed graph of any rank
is one long row (``pointwise.cu``). Elements are handled in groups along the axis in which the output is contiguous. If
a large input is contiguous along another axis (a transposition), neighbouring threads lie along that one instead, and a
group is one 32-byte sector of the output.

A convolution of an empty tensor, whose sums are 0, is pointwise arithmetic too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import SECTOR_BYTES
from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.access import MAX_VECTOR
from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, collapsed, space_of, with_axis
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_touched,
    ceil_div,
    ceil_power,
    conversion_target,
    divider,
    i64,
    macros,
    moved_bytes,
    target_label,
)
from lowdnn.engines.limits import Group, Limits
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.pointwise.samples import samples
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of, match_over_nothing, refuse_index_space
from lowdnn.ops.base import inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work
from lowdnn.status import Status

#: Values of BLOCK_SIZE: threads of a block.
_THREADS = (64, 128, 256, 512)
#: Values of MULTIPLY: groups of a thread in flight.
_UNROLLS = (1, 2, 4, 8)
#: Bytes of a thread in flight at most by default.
_BYTES_IN_FLIGHT = 32
#: Extent of both axes of a transposition at least.
_MIN_TRANSPOSED = 16


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    THREADS: int
    UNROLL: int
    VECTOR: int
    VECTOR_AXIS: int
    INDEX: str


class PointwiseEngine(ProblemEngine["_Problem"]):
    """Pointwise graphs, as the module's docstring says."""

    name = "pointwise"
    index = 4
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    anchors: Anchors = (PointwiseOperation, RngOperation, ConvolutionOperation)
    limits = Limits((Group((ConvolutionOperation,), 1), Group((PointwiseOperation, RngOperation))), spaces=1)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses other operations, convolutions that have products, and several index spaces."""
        dag = _match(graph)
        if isinstance(dag, str):
            return Refusal(self.name, dag)
        reason = _refuse_size(dag)
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else _Problem(dag)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """BLOCK_SIZE and MULTIPLY (groups in flight for each thread)."""
        unroll = problem.layout.default_unroll(problem.dag, arch)
        return (
            Knob("threads", KnobType.BLOCK_SIZE, _THREADS, 128, "threads of a block"),
            Knob("unroll", KnobType.MULTIPLY, _UNROLLS, unroll, "groups in flight per thread"),
        )

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, or none if the outputs are empty."""
        dag, layout = problem.dag, problem.layout
        params = Params(
            THREADS=chosen[KnobType.BLOCK_SIZE],
            UNROLL=chosen[KnobType.MULTIPLY],
            VECTOR=layout.vector,
            VECTOR_AXIS=layout.vector_axis,
            INDEX=counter_type(layout.groups),
        )
        if not layout.groups:
            return PlanParts()
        types = [tensor.data_type for tensor in (*dag.stores, *dag.loads)]
        kernel = _kernel(params, layout.functor, types[0], conversion_target(types, arch))
        return PlanParts([(kernel, _launch(params, layout, dag))])

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Copies and sums with ReLU over packed tensors in fp32, fp16 and bf16."""
        return tuple(kernel for graph in samples() for kernel in self.plan(graph, spec_named(BASE_TARGET), {}).kernels)


@dataclass(frozen=True)
class _Problem:
    """A DAG, and the layout of its kernel, which is computed when a plan needs it."""

    dag: PointwiseDag

    @cached_property
    def layout(self) -> _Layout:
        return _Layout.of(self.dag)


@dataclass(frozen=True)
class _Layout:
    """The axes and groups of a DAG's kernel.

    space: the axes, slowest first.  vector_axis: the axis that is cut into groups of ``vector`` elements.
    """

    space: IndexSpace
    vector_axis: int
    vector: int
    functor: Functor

    @staticmethod
    def of(dag: PointwiseDag) -> _Layout:
        space = _ordered(dag)
        vector_axis, lane_axis = space.rank - 1, _lane_axis(dag, space)
        if lane_axis != vector_axis:
            order = tuple(a for a in range(space.rank) if a != lane_axis)
            space, vector_axis = space.permuted((*order, lane_axis)), space.rank - 2
        functor = generate(dag, accumulator=None, vector_axis=vector_axis, space=space)
        vector = functor.vector
        if vector_axis != space.rank - 1:
            vector = min(SECTOR_BYTES // min(t.element_bytes for t in dag.stores), MAX_VECTOR)
        return _Layout(space, vector_axis, min(vector, ceil_power(space.extents[vector_axis])), functor)

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """Groups along each axis."""
        return tuple(
            ceil_div(extent, self.vector) if axis == self.vector_axis else extent
            for axis, extent in enumerate(self.space.extents)
        )

    @cached_property
    def groups(self) -> int:
        return prod(self.radices)

    @cached_property
    def whole_groups(self) -> int:
        """Leading groups with ``vector`` elements each."""
        extent = self.space.extents[self.vector_axis]
        if extent % self.vector == 0:
            return self.groups
        return extent // self.vector if self.space.rank == 1 else 0

    def default_unroll(self, dag: PointwiseDag, arch: ArchSpec) -> int:
        """The default of MULTIPLY: as many groups as ``_BYTES_IN_FLIGHT`` allows, and leave work for every
        multiprocessor.

        Two vectors of a thread hide arithmetic. More cost registers, and full multiprocessors have enough in flight: on
        an H200, copies of 64 Mi elements with two vectors are 0.5 % slower than with one, and with four 2 %; GELU with
        two is 8 % faster.
        """
        group_bytes = self.vector * max(sum(map(self._streamed_bytes, dag.loads)), 1)
        fitting = [u for u in _UNROLLS if u * group_bytes <= _BYTES_IN_FLIGHT] or [1]
        threads = arch.sm_count * arch.threads_per_sm
        return max([u for u in fitting if u * threads <= self.groups] or [1])

    def _streamed_bytes(self, tensor: Tensor) -> int:
        """Bytes of an element from device memory; 0 for a tensor that repeats, which comes from a cache."""
        strides = self.space.strides[tensor.uid]
        if strides[self.vector_axis] == 0:
            return 0
        repeats = any(not s and extent > 1 for s, extent in zip(strides, self.space.extents, strict=True))
        return 0 if repeats else tensor.element_bytes


def _match(graph: OperationGraph) -> PointwiseDag | str:
    """The graph as one DAG over the dims of its stored tensors, or the reason why it is not one."""
    if any(isinstance(op, ConvolutionOperation) for op in graph.operations):
        return match_over_nothing(graph)
    operations = tuple(op for op in graph.operations if isinstance(op, PointwiseOperation))
    randoms = tuple(op for op in graph.operations if isinstance(op, RngOperation))
    if len(operations) + len(randoms) != len(graph.operations):
        other = next(op for op in graph.operations if not isinstance(op, PointwiseOperation | RngOperation))
        return f"operations: expected pointwise operations and random numbers only, got {type(other).__name__}"
    for tensor in (tensor for op in randoms for tensor in inputs_of(op).values()):
        if graph.producer(tensor) is not None:
            return f"RngOperation: expected a graph input as seed and offset, got {tensor.label}"
    if not graph.outputs:
        return "operations: expected at least one tensor that is not virtual among the outputs, got none"
    dims = graph.outputs[0].dims
    return refuse_index_space((*randoms, *operations), dims) or dag_of(dims, operations, randoms=randoms)


def _refuse_size(dag: PointwiseDag) -> str:
    """The reason why the kernel's indices do not reach all of the tensors, or an empty string."""
    if prod(dag.dims) <= MAX_EXTENT:
        return ""
    layout = _Layout.of(dag)
    extent = max(layout.radices[1:], default=1)
    if extent > MAX_EXTENT:
        return f"tensor.dims: expected at most {MAX_EXTENT} groups along an axis, got {extent}"
    blocks = ceil_div(layout.groups, _THREADS[0])
    if blocks > MAX_GRID_X:
        return f"tensor.dims: expected at most {MAX_GRID_X} blocks, got {blocks}"
    return ""


def _ordered(dag: PointwiseDag) -> IndexSpace:
    """The DAG's axes by falling strides in its outputs, merged where possible."""
    space = space_of(dag)
    rows = tuple(space.strides[t.uid] for t in (*dag.stores, *dag.loads))
    order = sorted(range(space.rank), key=lambda axis: tuple(-row[axis] for row in rows))
    indexed = {op.pointwise.axis for op in dag.operations if op.mode is PointwiseMode.GEN_INDEX}
    space = collapsed(space.permuted(tuple(order)), alone=indexed)
    return space if space.rank else with_axis(space, 0)


def _lane_axis(dag: PointwiseDag, space: IndexSpace) -> int:
    """The axis along which neighbouring threads lie: the last one, unless the largest load is contiguous elsewhere."""
    last = space.rank - 1
    largest = max(dag.loads, key=bytes_touched, default=None)
    if largest is None or space.strides[largest.uid][last] <= 1 or space.extents[last] < _MIN_TRANSPOSED:
        return last
    contiguous = [a for a, stride in enumerate(space.strides[largest.uid]) if stride == 1]
    return next((a for a in contiguous if space.extents[a] >= _MIN_TRANSPOSED), last)


def _kernel(params: Params, functor: Functor, data_type: DataType, target: str) -> KernelRef:
    shape = f"v{params.VECTOR}u{params.UNROLL}t{params.THREADS}a{params.VECTOR_AXIS}_{params.INDEX}"
    return KernelRef(
        name=f"pointwise_{dtypes.info(data_type).short_name}_{shape}_{target_label(target)}_{functor.digest}",
        source="pointwise/pointwise.cu",
        target=target,
        parameters=macros(params),
        generated=functor.text,
    )


def _launch(params: Params, layout: _Layout, dag: PointwiseDag) -> Launch:
    axes = tuple(field for radix in (1, *layout.radices[1:]) for field in divider(radix))
    sizes = (layout.groups, layout.whole_groups, layout.space.extents[layout.vector_axis])
    arguments = Struct((*i64(sizes), *axes, layout.functor.arguments))
    compute_types = {op.pointwise.compute_type for op in dag.operations} | {op.compute_type for op in dag.randoms}
    return Launch(
        kernel=0,
        grid=(ceil_div(layout.groups, params.THREADS * params.UNROLL), 1, 1),
        block=(params.THREADS, 1, 1),
        arguments=(arguments,),
        work=Work(
            flops=prod(dag.dims) * len(dag.operations) + sum(op.flops for op in dag.randoms),
            bytes=moved_bytes(dag),
            unit=MathUnit.FMA_F64 if DataType.DOUBLE in compute_types else MathUnit.FMA_F32,
        ),
    )
