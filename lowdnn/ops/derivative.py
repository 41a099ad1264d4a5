"""Derivatives of pointwise operations by the chain rule, as pointwise operations.

Elements of equal index belong together: y depends on x through a DAG of operations, and dx = dy * (dy/dx). Comparisons,
rounding to integers and indices do not change with x and have no derivative. Where a function has two slopes, MIN and
MAX give that of x, ABS the slope 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, pi, sqrt

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.base import HasPorts, inputs_of, outputs_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, input_ports, is_predicate, output_port
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import NotSupportedError

_M = PointwiseMode
#: Results that do not change, or jump, as their operands change.
_STEPS = (_M.CEIL, _M.FLOOR, _M.GEN_INDEX)
#: The mode that is the derivative of an activation times dy.
_GRADIENTS: Mapping[PointwiseMode, PointwiseMode] = {
    _M.RELU_FWD: _M.RELU_BWD,
    _M.TANH_FWD: _M.TANH_BWD,
    _M.SIGMOID_FWD: _M.SIGMOID_BWD,
    _M.ELU_FWD: _M.ELU_BWD,
    _M.GELU_FWD: _M.GELU_BWD,
    _M.SOFTPLUS_FWD: _M.SOFTPLUS_BWD,
    _M.SWISH_FWD: _M.SWISH_BWD,
    _M.GELU_APPROX_TANH_FWD: _M.GELU_APPROX_TANH_BWD,
}


def depend_on(x: Tensor, operations: Iterable[HasPorts]) -> frozenset[int]:
    """The uids of ``x`` and of all tensors that ``operations`` compute from it."""
    found = {x.uid}
    for op in operations:
        is_step = isinstance(op, PointwiseOperation) and (is_predicate(op.mode) or op.mode in _STEPS)
        reads = {port: tensor for port, tensor in inputs_of(op).items() if tensor.uid in found and port != "t"}
        if reads and not is_step:
            found |= {tensor.uid for tensor in outputs_of(op).values()}
    return frozenset(found)


def gradient_through(
    where: str,
    operations: Iterable[HasPorts],
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    new_uid: Callable[[], int],
    lowest: float = -inf,
) -> tuple[tuple[PointwiseOperation, ...], Tensor]:
    """(operations, dx): the operations that compute dx from dy and the tensors of ``operations``.

    Both are in topological order. New tensors are virtual or constants; a gradient has the dims of its tensor, and uids
    come from ``new_uid``. lowest: wherever a constant up to this was selected, dy is 0.
    Raises NotSupportedError, naming ``where``, for an operation whose derivative no mode gives.
    """
    given = tuple(operations)
    dependent, chain = depend_on(x, given), _Chain(new_uid, lowest)
    gradients = {y.uid: dy}
    for op in reversed(given):
        if not any(uid in dependent and uid in gradients for uid in (t.uid for t in outputs_of(op).values())):
            continue
        if not isinstance(op, PointwiseOperation) or op.mode not in _RULES:
            got = op.mode.name if isinstance(op, PointwiseOperation) else type(op).__name__
            raise NotSupportedError.at(where, expected="operations with a pointwise derivative", got=got)
        for port, tensor in op.operands.items():
            if port == "t" or tensor.uid not in dependent:
                continue
            term = _RULES[op.mode](chain, op, port, gradients[op.output.uid])
            known = gradients.get(tensor.uid)
            gradients[tensor.uid] = term if known is None else chain.apply(op, _M.ADD, known, term)
    dx = gradients.get(x.uid) or chain.nothing(x)
    return tuple(chain.operations), dx


@dataclass
class _Chain:
    """Builds the operations of the derivatives, and holds those made so far."""

    new_uid: Callable[[], int]
    lowest: float
    operations: list[PointwiseOperation] = field(default_factory=list)

    def apply(
        self, like: PointwiseOperation, mode: PointwiseMode, *operands: Tensor, alpha1: float = 1.0, alpha2: float = 1.0
    ) -> Tensor:
        """Adds an operation in the arithmetic of ``like``; gives its output."""
        made = self._made(like.output, DataType.DOUBLE if like.compute_type is DataType.DOUBLE else DataType.FLOAT)
        ports = dict(zip(input_ports(mode), operands, strict=True)) | {output_port(mode): made}
        x, b, t, dy, y, dx = (ports.get(port) for port in ("x", "b", "t", "dy", "y", "dx"))
        arithmetic = replace(like.pointwise, mode=mode)
        self.operations.append(PointwiseOperation(arithmetic, x, b, t, dy, y, dx, alpha1, alpha2))
        return made

    def number(self, like: PointwiseOperation, value: float) -> Tensor:
        ones = (1,) * like.output.rank
        return Tensor(self.new_uid(), DataType.FLOAT, ones, ones, 4, constant_value=value)

    def nothing(self, x: Tensor) -> Tensor:
        """Zeros in place of ``x``, on which nothing depends."""
        made, ones = self._made(x, DataType.FLOAT), (1,) * x.rank
        zero = Tensor(self.new_uid(), DataType.FLOAT, ones, ones, 4, constant_value=0.0)
        self.operations.append(PointwiseOperation(Pointwise(_M.IDENTITY, DataType.FLOAT), x=zero, y=made))
        return made

    def _made(self, like: Tensor, data_type: DataType) -> Tensor:
        return Tensor(self.new_uid(), data_type, like.dims, packed_strides(like.dims), 16, is_virtual=True)


def _alphas(op: PointwiseOperation) -> dict[str, float]:
    return {"x": op.alpha1, "b": op.alpha2}


_Rule = Callable[[_Chain, PointwiseOperation, str, Tensor], Tensor]


def _scaled(sign_of_b: float) -> _Rule:
    """x + sign * b."""

    def rule(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
        factor = _alphas(op)[port] * (sign_of_b if port == "b" else 1.0)
        return dz if factor == 1 else chain.apply(op, _M.IDENTITY, dz, alpha1=factor)

    return rule


def _product(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
    other = op.operands["b" if port == "x" else "x"]
    return chain.apply(op, _M.MUL, dz, other, alpha1=op.alpha1, alpha2=op.alpha2)


def _quotient(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
    """dz a1 / (a2 b), and -dz y / b."""
    b = op.operands["b"]
    if port == "x":
        return chain.apply(op, _M.DIV, dz, b, alpha1=op.alpha1, alpha2=op.alpha2)
    return chain.apply(op, _M.DIV, chain.apply(op, _M.MUL, dz, op.output), b, alpha1=-1.0)


def _sum_with_square(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
    if port == "x":
        return _scaled(1.0)(chain, op, port, dz)
    return chain.apply(op, _M.MUL, dz, op.operands["b"], alpha1=2 * op.alpha2**2)


def _chosen(comparison: PointwiseMode) -> _Rule:
    """x where ``x comparison b``, otherwise b."""

    def rule(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
        x, b = op.operands["x"], op.operands["b"]
        is_x = chain.apply(op, comparison, x, b, alpha1=op.alpha1, alpha2=op.alpha2)
        return _where(chain, op, is_x, port, dz)

    return rule


def _selected(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
    other = op.operands["b" if port == "x" else "x"].constant_value
    if other is not None and other <= chain.lowest and _alphas(op) == {"x": 1.0, "b": 1.0}:
        return dz
    return _where(chain, op, op.operands["t"], port, dz)


def _where(chain: _Chain, op: PointwiseOperation, is_x: Tensor, port: str, dz: Tensor) -> Tensor:
    """The gradient of operand ``port`` of a selection: dz times its alpha where it was selected, otherwise 0."""
    zero = chain.number(op, 0.0)
    operands, factor = ((dz, zero), {"alpha1": op.alpha1}) if port == "x" else ((zero, dz), {"alpha2": op.alpha2})
    return chain.apply(op, _M.BINARY_SELECT, *operands, is_x, **factor)


def _power(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
    """dz a1 (a2 b) (a1 x)^(a2 b - 1), and dz a2 y log(a1 x)."""
    x, b = op.operands["x"], op.operands["b"]
    if port == "x":
        less = chain.apply(op, _M.SUB, b, chain.number(op, 1.0), alpha1=op.alpha2)
        slope = chain.apply(op, _M.POW, x, less, alpha1=op.alpha1)
        slope = chain.apply(op, _M.MUL, slope, b, alpha2=op.alpha2)
        return chain.apply(op, _M.MUL, dz, slope, alpha1=op.alpha1)
    logarithm = chain.apply(op, _M.LOG, x, alpha1=op.alpha1)
    return chain.apply(op, _M.MUL, dz, chain.apply(op, _M.MUL, op.output, logarithm), alpha1=op.alpha2)


def _angle(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
    """dz a1 (a2 b) / r, and -dz a2 (a1 x) / r, with r = (a1 x)^2 + (a2 b)^2."""
    x, b = op.operands["x"], op.operands["b"]
    square = chain.apply(op, _M.MUL, x, x, alpha1=op.alpha1, alpha2=op.alpha1)
    radius = chain.apply(op, _M.ADD_SQUARE, square, b, alpha2=op.alpha2)
    other, sign = (b, 1.0) if port == "x" else (x, -1.0)
    return chain.apply(op, _M.DIV, _times(chain, op, dz, other, sign * op.alpha1 * op.alpha2), radius)


def _times(chain: _Chain, op: PointwiseOperation, dz: Tensor, slope: Tensor, factor: float) -> Tensor:
    return chain.apply(op, _M.MUL, dz, slope, alpha1=factor)


def _activation(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
    x = op.operands["x"]
    if op.alpha1 != 1:
        x = chain.apply(op, _M.IDENTITY, x, alpha1=op.alpha1)
    found = chain.apply(op, _GRADIENTS[op.mode], dz, x)
    return found if op.alpha1 == 1 else chain.apply(op, _M.IDENTITY, found, alpha1=op.alpha1)


def _by_slope(slope: Callable[[_Chain, PointwiseOperation, Tensor], tuple[Tensor, float]]) -> _Rule:
    """dz times a slope, which is a tensor times a factor."""

    def rule(chain: _Chain, op: PointwiseOperation, port: str, dz: Tensor) -> Tensor:
        found, factor = slope(chain, op, op.operands["x"])
        return _times(chain, op, dz, found, factor * op.alpha1)

    return rule


def _magnitude_slope(chain: _Chain, op: PointwiseOperation, x: Tensor) -> tuple[Tensor, float]:
    zero = chain.number(op, 0.0)
    signs = [chain.apply(op, mode, x, zero, alpha1=op.alpha1) for mode in (_M.CMP_GT, _M.CMP_LT)]
    return chain.apply(op, _M.SUB, *signs), 1.0


def _of_one(mode: PointwiseMode, factor: float = 1.0) -> _Rule:
    """The slope is ``mode`` of x, times ``factor``."""
    return _by_slope(lambda chain, op, x: (chain.apply(op, mode, x, alpha1=op.alpha1), factor))


def _of_result(modes: tuple[PointwiseMode, ...], factor: float) -> _Rule:
    """The slope is ``modes`` of y, one after the other, times ``factor``."""

    def slope(chain: _Chain, op: PointwiseOperation, x: Tensor) -> tuple[Tensor, float]:
        found = op.output
        for mode in modes:
            found = chain.apply(op, mode, *((found, op.output) if mode is _M.MUL else (found,)))
        return found, factor

    return _by_slope(slope)


def _bell(chain: _Chain, op: PointwiseOperation, x: Tensor) -> tuple[Tensor, float]:
    """2 / sqrt(pi) exp(-x^2)."""
    square = chain.apply(op, _M.MUL, x, x, alpha1=-op.alpha1, alpha2=op.alpha1)
    return chain.apply(op, _M.EXP, square), 2 / sqrt(pi)


def _tangent_slope(chain: _Chain, op: PointwiseOperation, x: Tensor) -> tuple[Tensor, float]:
    return chain.apply(op, _M.ADD_SQUARE, chain.number(op, 1.0), op.output), 1.0


_RULES: Mapping[PointwiseMode, _Rule] = {
    _M.ADD: _scaled(1.0),
    _M.SUB: _scaled(-1.0),
    _M.IDENTITY: _scaled(1.0),
    _M.MUL: _product,
    _M.DIV: _quotient,
    _M.ADD_SQUARE: _sum_with_square,
    _M.MIN: _chosen(_M.CMP_LE),
    _M.MAX: _chosen(_M.CMP_GE),
    _M.BINARY_SELECT: _selected,
    _M.POW: _power,
    _M.ATAN2: _angle,
    _M.ABS: _by_slope(_magnitude_slope),
    _M.NEG: lambda chain, op, port, dz: chain.apply(op, _M.IDENTITY, dz, alpha1=-op.alpha1),
    _M.EXP: _of_result((), 1.0),
    _M.LOG: _of_one(_M.RECIPROCAL),
    _M.SIN: _of_one(_M.COS),
    _M.COS: _of_one(_M.SIN, -1.0),
    _M.TAN: _by_slope(_tangent_slope),
    _M.ERF: _by_slope(_bell),
    _M.SQRT: _of_result((_M.RECIPROCAL,), 0.5),
    _M.RSQRT: _of_result((_M.MUL, _M.MUL), -0.5),
    _M.RECIPROCAL: _of_result((_M.MUL,), -1.0),
    **dict.fromkeys(_GRADIENTS, _activation),
}
