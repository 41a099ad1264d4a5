"""Pointwise operations: one output element from the elements at the same index of up to three inputs.

Forward modes compute y = f(alpha1 * x [, alpha2 * b] [, t]); activation backward modes dx = dy * f'(x) with x the
input of the forward activation. An input extent of 1 repeats along that axis, and a one-element input of any rank fits
every shape. All arithmetic happens in ``compute_type``; comparisons and logical modes give 0 or 1. Backward modes,
LOGICAL_* and GEN_INDEX take no alpha. Compute types: every mode in floats; in integers those marked [i], whose alphas,
clips and slopes must be integers; in BOOLEAN the comparisons, LOGICAL_*, IDENTITY and BINARY_SELECT.

    [i] ADD x+b  SUB x-b  MUL x*b  DIV x/b  ADD_SQUARE x+b*b  MIN, MAX (NaN wins)
    [i] MOD x-b*trunc(x/b) (fmod)  FLOOR_MOD x-b*floor(x/b) (fmod, plus b where the signs of the remainder and b differ)
    [i] ABS NEG IDENTITY    POW x**b  ATAN2 atan2(x, b)  CEIL COS EXP FLOOR LOG RSQRT SIN SQRT TAN ERF  RECIPROCAL 1/x
    [i] RELU_FWD x where x is NaN, min(x, upper) where x > lower, otherwise lower + slope * (x - lower)
    [i] RELU_BWD dy where lower < x < upper, 0 where x >= upper, otherwise slope * dy (NaN in x counts as lower);
        a slope of 0 gives exactly lower and 0, for infinite x and dy too
    ELU_FWD x where x > 0, otherwise alpha * (exp(x) - 1)   TANH_FWD  SIGMOID_FWD 1/(1+exp(-x))
    GELU_FWD x/2 * (1 + erf(x / sqrt 2))   GELU_APPROX_TANH_FWD x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
    SOFTPLUS_FWD log(1 + exp(beta * x)) / beta   SWISH_FWD x / (1 + exp(-beta * x))
    [i] CMP_EQ CMP_NEQ CMP_GT CMP_GE CMP_LT CMP_LE  LOGICAL_AND LOGICAL_OR LOGICAL_NOT (non-zero is true)
    [i] GEN_INDEX the element's index along ``axis``   BINARY_SELECT x where t is non-zero, otherwise b

Integer arithmetic wraps at the compute type's width; DIV truncates toward zero; DIV, MOD and FLOOR_MOD by zero give 0;
an infinite clip is the largest integer.
Truth is judged on an operand's own value, and comparisons in BOOLEAN compare the operands' own values: neither is
converted to the compute type first.

Source: cudnn_graph.h, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, OPERATION_POINTWISE, cudnnPointwiseMode_t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PointwiseMode
from lowdnn.ops import pointwise_reference
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError

_BINARY = frozenset(
    {
        PointwiseMode.ADD,
        PointwiseMode.ADD_SQUARE,
        PointwiseMode.DIV,
        PointwiseMode.MAX,
        PointwiseMode.MIN,
        PointwiseMode.MOD,
        PointwiseMode.FLOOR_MOD,
        PointwiseMode.MUL,
        PointwiseMode.POW,
        PointwiseMode.SUB,
        PointwiseMode.ATAN2,
        PointwiseMode.CMP_EQ,
        PointwiseMode.CMP_NEQ,
        PointwiseMode.CMP_GT,
        PointwiseMode.CMP_GE,
        PointwiseMode.CMP_LT,
        PointwiseMode.CMP_LE,
        PointwiseMode.LOGICAL_AND,
        PointwiseMode.LOGICAL_OR,
    }
)
_FLOAT_TYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
_INTEGER_TYPES = (DataType.INT32, DataType.INT64)
_INTEGER_MODES = frozenset(
    {
        PointwiseMode.ADD,
        PointwiseMode.SUB,
        PointwiseMode.MUL,
        PointwiseMode.DIV,
        PointwiseMode.ADD_SQUARE,
        PointwiseMode.MIN,
        PointwiseMode.MAX,
        PointwiseMode.MOD,
        PointwiseMode.FLOOR_MOD,
        PointwiseMode.ABS,
        PointwiseMode.NEG,
        PointwiseMode.IDENTITY,
        PointwiseMode.RELU_FWD,
        PointwiseMode.RELU_BWD,
        PointwiseMode.GEN_INDEX,
        PointwiseMode.BINARY_SELECT,
    }
)
_BOOLEAN_MODES = frozenset({PointwiseMode.IDENTITY, PointwiseMode.BINARY_SELECT})


def is_backward(mode: PointwiseMode) -> bool:
    """True for the activation gradients, whose ports are dy, x and dx."""
    return 200 <= mode < 300


def is_predicate(mode: PointwiseMode) -> bool:
    """True for comparisons and logical modes, whose result is 0 or 1."""
    return 300 <= mode < 500


@cache
def compute_types(mode: PointwiseMode) -> tuple[DataType, ...]:
    """The compute types in which ``mode`` has a meaning."""
    integer = _INTEGER_TYPES if mode in _INTEGER_MODES or is_predicate(mode) else ()
    boolean = (DataType.BOOLEAN,) if mode in _BOOLEAN_MODES or is_predicate(mode) else ()
    return (*_FLOAT_TYPES, *integer, *boolean)


def takes_alpha(mode: PointwiseMode) -> bool:
    """True for the modes whose operands x and b are scaled by alpha1 and alpha2."""
    is_logical = PointwiseMode.LOGICAL_AND <= mode <= PointwiseMode.LOGICAL_NOT
    return not (is_backward(mode) or is_logical or mode is PointwiseMode.GEN_INDEX)


@cache
def input_ports(mode: PointwiseMode) -> tuple[str, ...]:
    """The input ports that ``mode`` needs, in the order of its formula."""
    if is_backward(mode):
        return ("dy", "x")
    if mode is PointwiseMode.BINARY_SELECT:
        return ("x", "b", "t")
    return ("x", "b") if mode in _BINARY else ("x",)


def output_port(mode: PointwiseMode) -> str:
    return "dx" if is_backward(mode) else "y"


@dataclass(frozen=True)
class Pointwise:
    """Mode, arithmetic type and parameters of a pointwise operation."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.POINTWISE

    mode: PointwiseMode = attribute(AttributeName.POINTWISE_MODE, AttributeType.POINTWISE_MODE)
    compute_type: DataType = attribute(AttributeName.POINTWISE_MATH_PREC, AttributeType.DATA_TYPE)
    relu_lower_clip: float = attribute(
        AttributeName.POINTWISE_RELU_LOWER_CLIP, AttributeType.DOUBLE, AttributeType.FLOAT, default=0.0
    )
    relu_upper_clip: float = attribute(
        AttributeName.POINTWISE_RELU_UPPER_CLIP, AttributeType.DOUBLE, AttributeType.FLOAT, default=float("inf")
    )
    relu_lower_clip_slope: float = attribute(
        AttributeName.POINTWISE_RELU_LOWER_CLIP_SLOPE, AttributeType.DOUBLE, AttributeType.FLOAT, default=0.0
    )
    elu_alpha: float = attribute(
        AttributeName.POINTWISE_ELU_ALPHA, AttributeType.DOUBLE, AttributeType.FLOAT, default=1.0
    )
    softplus_beta: float = attribute(
        AttributeName.POINTWISE_SOFTPLUS_BETA, AttributeType.DOUBLE, AttributeType.FLOAT, default=1.0
    )
    swish_beta: float = attribute(
        AttributeName.POINTWISE_SWISH_BETA, AttributeType.DOUBLE, AttributeType.FLOAT, default=1.0
    )
    axis: int = attribute(AttributeName.POINTWISE_AXIS, AttributeType.INT64, default=-1)

    def __post_init__(self) -> None:
        allowed = compute_types(self.mode)
        if self.compute_type not in allowed:
            raise UnsupportedDataTypeError.at(
                "pointwise.compute_type",
                expected="one of " + ", ".join(t.name for t in allowed) + f" for {self.mode.name}",
                got=self.compute_type.name,
            )
        is_relu = self.mode in (PointwiseMode.RELU_FWD, PointwiseMode.RELU_BWD)
        if is_relu and not self.relu_lower_clip <= self.relu_upper_clip:
            raise BadParamError.at(
                "pointwise.relu_lower_clip",
                expected=f"at most the upper clip, {self.relu_upper_clip}",
                got=self.relu_lower_clip,
            )
        if self.softplus_beta == 0:
            raise BadParamError.at("pointwise.softplus_beta", expected="a value other than 0", got=self.softplus_beta)
        if self.is_integer:
            for field in ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope"):
                self._check_integral(f"pointwise.{field}", getattr(self, field))

    @property
    def clips_at_zero_only(self) -> bool:
        """Whether the parameters of RELU_FWD make it max(x, 0)."""
        return (self.relu_lower_clip, self.relu_upper_clip, self.relu_lower_clip_slope) == (0.0, float("inf"), 0.0)

    @property
    def is_integer(self) -> bool:
        """True for integer arithmetic."""
        return self.compute_type in _INTEGER_TYPES

    def check_alpha(self, field: str, alpha: float, is_used: bool) -> None:
        """Checks alpha1 or alpha2 of an operation with this arithmetic; raises BadParamError."""
        where = f"pointwise.{field}"
        if alpha == 1.0:
            return
        if not is_used or self.compute_type is DataType.BOOLEAN:
            raise BadParamError.at(where, expected=f"1.0 for {self.mode.name} in {self.compute_type.name}", got=alpha)
        if self.is_integer:
            self._check_integral(where, alpha)

    def _check_integral(self, where: str, value: float) -> None:
        if value == value and not (value == float("inf") or float(value).is_integer()):
            raise BadParamError.at(where, expected=f"an integer for {self.compute_type.name}", got=value)


@dataclass(frozen=True)
class PointwiseOperation:
    """See the module's docstring. Ports that the mode does not use stay None."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_POINTWISE
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.POINTWISE

    pointwise: Pointwise = attribute(
        AttributeName.OPERATION_POINTWISE_PW_DESCRIPTOR,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.POINTWISE,
    )
    x: Tensor | None = tensor_input(AttributeName.OPERATION_POINTWISE_XDESC, default=None)
    b: Tensor | None = tensor_input(AttributeName.OPERATION_POINTWISE_BDESC, default=None)
    t: Tensor | None = tensor_input(AttributeName.OPERATION_POINTWISE_TDESC, default=None)
    dy: Tensor | None = tensor_input(AttributeName.OPERATION_POINTWISE_DYDESC, default=None)
    y: Tensor | None = tensor_output(AttributeName.OPERATION_POINTWISE_YDESC, default=None)
    dx: Tensor | None = tensor_output(AttributeName.OPERATION_POINTWISE_DXDESC, default=None)
    alpha1: float = attribute(
        AttributeName.OPERATION_POINTWISE_ALPHA1, AttributeType.FLOAT, AttributeType.DOUBLE, default=1.0
    )
    alpha2: float = attribute(
        AttributeName.OPERATION_POINTWISE_ALPHA2, AttributeType.FLOAT, AttributeType.DOUBLE, default=1.0
    )

    def __post_init__(self) -> None:
        self._check_ports()
        scaled = input_ports(self.mode) if takes_alpha(self.mode) else ()
        self.pointwise.check_alpha("alpha1", self.alpha1, "x" in scaled)
        self.pointwise.check_alpha("alpha2", self.alpha2, "b" in scaled)
        dims = self.output.dims
        for port, tensor in self.operands.items():
            if tensor.element_count != 1 and not _repeats_to(tensor.dims, dims):
                raise ShapeMismatchError.at(
                    f"pointwise.{port}.dims",
                    expected=f"{list(dims)}, with 1 where it repeats, or one element",
                    got=list(tensor.dims),
                    hint=f"{tensor.label} feeds {self.mode.name}",
                )
        axis = self.pointwise.axis
        if self.mode is PointwiseMode.GEN_INDEX and not 0 <= axis < len(dims):
            raise BadParamError.at("pointwise.axis", expected=f"0 to {len(dims) - 1} for GEN_INDEX", got=axis)

    @property
    def compute_type(self) -> DataType:
        return self.pointwise.compute_type

    @property
    def mode(self) -> PointwiseMode:
        return self.pointwise.mode

    @cached_property
    def operands(self) -> dict[str, Tensor]:
        """The input tensors by port, in the order of the mode's formula."""
        return {port: getattr(self, port) for port in input_ports(self.mode)}

    @cached_property
    def output(self) -> Tensor:
        tensor: Tensor = getattr(self, output_port(self.mode))
        return tensor

    @property
    def flops(self) -> int:
        return self.output.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {output_port(self.mode): pointwise_reference.evaluate(self, inputs)}

    def _check_ports(self) -> None:
        needed = {*input_ports(self.mode), output_port(self.mode)}
        for port in ("x", "b", "t", "dy", "y", "dx"):
            present = getattr(self, port) is not None
            if present != (port in needed):
                raise BadParamError.at(
                    f"pointwise.{port}",
                    expected=f"a tensor for {self.mode.name}" if port in needed else f"no tensor for {self.mode.name}",
                    got="a tensor" if present else "none",
                )


def output_dims(operands: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The broadcast shape of the dims of the operands, by port; one element of any rank fits the others.

    Raises ShapeMismatchError where an axis has two extents.
    """
    several = [dims for dims in operands.values() if set(dims) != {1}]
    rank = max(len(dims) for dims in several or operands.values())
    result = [1] * rank
    for port, dims in operands.items():
        where = f"pointwise.{port}.dims"
        if len(dims) != rank and set(dims) == {1}:
            continue
        if len(dims) != rank:
            raise ShapeMismatchError.at(where, expected=f"rank {rank} or one element", got=list(dims))
        for axis, extent in enumerate(dims):
            if extent != 1 and result[axis] not in (1, extent):
                raise ShapeMismatchError.at(f"{where}[{axis}]", expected=f"1 or {result[axis]}", got=extent)
            if extent != 1:
                result[axis] = extent
    return tuple(result)


def _repeats_to(dims: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(dims) == len(target) and all(extent in (1, wanted) for extent, wanted in zip(dims, target, strict=True))
