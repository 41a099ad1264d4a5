"""The pointwise chains of cases: ``bias+relu``, ``scale+gelu``, ``add+store+relu``.

A chain turns one value into the next, step by step. A step is a mode of the pointwise operation by its name in lower
case (``relu`` for RELU_FWD, ``relu_bwd``, ``cmp_gt``, ``select`` for BINARY_SELECT...) or one of the named ones below.
A mode with two operands takes a new tensor for the second. ``store`` writes the value so far to memory as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.ops.base import Operation, inputs_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, input_ports
from lowdnn.ops.tensor import Tensor

STORE = "store"
#: The constant second operand of steps that have one in the graph.
_CONSTANT = 2


class OperandShape(Enum):
    """The shape of a step's second operand."""

    CHAIN = "chain"  #: the operand dims of the chain
    CHANNEL = "channel"  #: one value for each channel
    FULL = "full"  #: the value's own dims
    BY_VALUE = "by_value"  #: one number, given at execute
    CONSTANT = "constant"  #: one number, part of the graph


@dataclass(frozen=True)
class Step:
    """One pointwise operation of a chain; clips and slope are those of RELU_FWD and RELU_BWD."""

    mode: PointwiseMode
    operand: OperandShape = OperandShape.CHAIN
    upper_clip: float = float("inf")
    slope: float = 0.0


@dataclass(frozen=True)
class Chain:
    """A chain of steps over values of ``dims``.

    operand_dims, channel_dims: dims of the second operands, by the step's ``OperandShape``.
    operand_type: their data type.  compute_type: the arithmetic.  axis: the axis of gen_index.
    """

    steps: tuple[str, ...]
    dims: tuple[int, ...]
    operand_dims: tuple[int, ...]
    channel_dims: tuple[int, ...]
    operand_type: DataType
    compute_type: DataType
    operand_layout: Layout = Layout.ROW_MAJOR
    axis: int = 0

    def build(self, builder: CaseBuilder, value: Tensor, store: DataType | None, layout: Layout) -> Tensor:
        """Adds the steps behind ``value``; the last one is stored in ``store``, or virtual where that is None.

        A value that a ``store`` keeps on the way has the operands' type.
        """
        for number, name in enumerate(self.steps):
            if name == STORE:
                continue
            is_last = number == len(self.steps) - 1
            is_kept = not is_last and self.steps[number + 1] == STORE
            kept = store or self.operand_type if is_kept else store if is_last else None
            value = self._apply(builder, STEPS[name], value, kept, layout)
        return value

    def _apply(self, builder: CaseBuilder, step: Step, value: Tensor, store: DataType | None, layout: Layout) -> Tensor:
        arithmetic = Pointwise(
            step.mode,
            self.compute_type,
            relu_upper_clip=step.upper_clip,
            relu_lower_clip_slope=step.slope,
            axis=self.axis if step.mode is PointwiseMode.GEN_INDEX else -1,
        )
        ports = input_ports(step.mode)
        operands = [value, *[self._operand(builder, step, port) for port in ports[1:]]]
        return builder.pointwise(arithmetic, *operands, store=store, layout=layout)

    def _operand(self, builder: CaseBuilder, step: Step, port: str) -> Tensor:
        rank = len(self.dims)
        data_type = DataType.BOOLEAN if port == "t" else self.operand_type
        if step.operand is OperandShape.BY_VALUE:
            return builder.by_value(rank, _scalar_type(self.compute_type), name="scalar")
        if step.operand is OperandShape.CONSTANT:
            return builder.constant(rank, _scalar_type(self.compute_type), _CONSTANT, name="constant")
        dims = {
            OperandShape.CHAIN: self.operand_dims,
            OperandShape.CHANNEL: self.channel_dims,
            OperandShape.FULL: self.dims,
        }[step.operand]
        return builder.tensor(dims, data_type, layout=self.operand_layout, name=port)


def names_of(
    operations: Iterable[Operation], value: Tensor, operand_dims: tuple[int, ...], channel_dims: tuple[int, ...]
) -> tuple[str, ...] | None:
    """The names of the steps if ``operations`` are a chain after an operation's output ``value``, otherwise None. The
    operands' types and layouts and the parameters of a mode are not compared.
    """
    shapes = {
        OperandShape.CHAIN: operand_dims,
        OperandShape.CHANNEL: channel_dims,
        OperandShape.FULL: value.dims,
    }
    names: list[str] = []
    for op in operations:
        if not isinstance(op, PointwiseOperation):
            return None
        first, *others = inputs_of(op).values()
        if first.uid != value.uid:
            return None
        fitting = (name for name, step in STEPS.items() if _fits(step, op.pointwise, others, shapes))
        name = next(fitting, None)
        if name is None:
            return None
        names += [name] if value.is_virtual else [STORE, name]
        value = op.output
    return tuple(names)


def is_exact(steps: tuple[str, ...]) -> bool:
    """True where small integers stay exact through the steps, so that results are compared bit for bit."""
    return all(name == STORE or STEPS[name].mode in _EXACT_MODES for name in steps)


def _fits(
    step: Step, pointwise: Pointwise, others: Sequence[Tensor], shapes: Mapping[OperandShape, tuple[int, ...]]
) -> bool:
    """Whether ``pointwise``, whose further operands are ``others``, is the operation of ``step``."""
    found = (pointwise.mode, pointwise.relu_upper_clip, pointwise.relu_lower_clip_slope)
    if found != (step.mode, step.upper_clip, step.slope):
        return False
    if step.operand is OperandShape.BY_VALUE:
        return all(tensor.is_by_value for tensor in others)
    if step.operand is OperandShape.CONSTANT:
        return all(tensor.constant_value == _CONSTANT for tensor in others)
    return all(not tensor.is_scalar_value and tensor.dims == shapes[step.operand] for tensor in others)


def _scalar_type(compute_type: DataType) -> DataType:
    """By-value scalars travel in the compute type; narrow floats as fp32."""
    return DataType.FLOAT if compute_type in (DataType.HALF, DataType.BFLOAT16, DataType.BOOLEAN) else compute_type


def _step_name(mode: PointwiseMode) -> str:
    return "select" if mode is PointwiseMode.BINARY_SELECT else mode.name.removesuffix("_FWD").lower()


STEPS: Mapping[str, Step] = {_step_name(mode): Step(mode) for mode in PointwiseMode} | {
    "bias": Step(PointwiseMode.ADD, OperandShape.CHANNEL),
    "scale": Step(PointwiseMode.MUL, OperandShape.CHANNEL),
    "residual": Step(PointwiseMode.ADD, OperandShape.FULL),
    "scalar": Step(PointwiseMode.MUL, OperandShape.BY_VALUE),
    "double": Step(PointwiseMode.MUL, OperandShape.CONSTANT),
    "relu6": Step(PointwiseMode.RELU_FWD, upper_clip=6.0),
    "leaky_relu": Step(PointwiseMode.RELU_FWD, slope=0.25),
}

#: The names that a chain may have.
NAMES = (*STEPS, STORE)

_EXACT_MODES = frozenset(
    {
        PointwiseMode.ADD,
        PointwiseMode.SUB,
        PointwiseMode.MUL,
        PointwiseMode.ADD_SQUARE,
        PointwiseMode.MIN,
        PointwiseMode.MAX,
        PointwiseMode.ABS,
        PointwiseMode.CEIL,
        PointwiseMode.FLOOR,
        PointwiseMode.NEG,
        PointwiseMode.IDENTITY,
        PointwiseMode.RELU_FWD,
        PointwiseMode.RELU_BWD,
        PointwiseMode.CMP_EQ,
        PointwiseMode.CMP_NEQ,
        PointwiseMode.CMP_GT,
        PointwiseMode.CMP_GE,
        PointwiseMode.CMP_LT,
        PointwiseMode.CMP_LE,
        PointwiseMode.LOGICAL_AND,
        PointwiseMode.LOGICAL_OR,
        PointwiseMode.LOGICAL_NOT,
        PointwiseMode.GEN_INDEX,
        PointwiseMode.BINARY_SELECT,
    }
)
