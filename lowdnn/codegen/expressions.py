"""The CUDA expression of every pointwise mode: a fused mode is one row of this table.

An expression is written over operand names ``{x} {b} {t} {dy}`` (``{t}`` is a condition), names of parameters, ``{T}``
(the arithmetic type) and, for GEN_INDEX, ``{index}``. Functions are the compiler's own overloads for f32 and f64, or
are defined in ``engines/include/pointwise.cuh`` or in the header that an expression names. Formulas:
``lowdnn/ops/pointwise.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn.enums import PointwiseMode
from lowdnn.ops.pointwise import Pointwise


@dataclass(frozen=True)
class Expression:
    """One mode.

    real: the text for f32 and f64.  integer: the text for i32 and i64; empty if the mode has no meaning for integers.
    parameters: fields of ``Pointwise`` that the text names.  integer_header: the header that defines a function of
    ``integer``, if it is not ``pointwise``.
    """

    real: str
    integer: str = ""
    parameters: tuple[str, ...] = ()
    integer_header: str = ""


def expression(pointwise: Pointwise) -> Expression:
    """The expression of ``pointwise``: by its mode, or a shorter one if its parameters make half of it unnecessary."""
    if pointwise.mode is PointwiseMode.RELU_FWD and pointwise.clips_at_zero_only:
        return _PLAIN_RELU
    return _TABLE[pointwise.mode]


def _same(text: str, parameters: tuple[str, ...] = ()) -> Expression:
    """One text for real and integer arithmetic."""
    return Expression(text, text, parameters)


_RELU_CLIPS = "{relu_lower_clip}, {relu_upper_clip}, {relu_lower_clip_slope}"
_RELU_PARAMETERS = ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope")

#: #: ReLU with slope 0, which keeps NaN.
_PLAIN_RELU = _same("relu({x})")

_M = PointwiseMode
_TABLE: Mapping[PointwiseMode, Expression] = {
    _M.ADD: _same("{x} + {b}"),
    _M.SUB: _same("{x} - {b}"),
    _M.MUL: _same("{x} * {b}"),
    _M.DIV: Expression("{x} / {b}", "divide({x}, {b})"),
    _M.ADD_SQUARE: _same("{x} + {b} * {b}"),
    _M.MIN: _same("minimum({x}, {b})"),
    _M.MAX: _same("maximum({x}, {b})"),
    _M.POW: Expression("pow({x}, {b})"),
    _M.ATAN2: Expression("atan2({x}, {b})"),
    _M.MOD: Expression("fmod({x}, {b})", "modulo({x}, {b})"),
    _M.FLOOR_MOD: _same("floor_modulo({x}, {b})"),
    _M.ABS: Expression("fabs({x})", "({x} < 0 ? -{x} : {x})"),
    _M.CEIL: Expression("ceil({x})"),
    _M.FLOOR: Expression("floor({x})"),
    _M.COS: Expression("cos({x})"),
    _M.EXP: Expression("exp({x})"),
    _M.LOG: Expression("log({x})"),
    _M.NEG: Expression("-{x}", "negated({x})", integer_header="negation"),
    _M.RSQRT: Expression("inverse_sqrt({x})"),
    _M.SIN: Expression("sin({x})"),
    _M.SQRT: Expression("sqrt({x})"),
    _M.TAN: Expression("tan({x})"),
    _M.ERF: Expression("erf({x})"),
    _M.IDENTITY: _same("{x}"),
    _M.RECIPROCAL: Expression("{T}(1) / {x}"),
    _M.RELU_FWD: _same(f"clipped_relu({{x}}, {_RELU_CLIPS})", _RELU_PARAMETERS),
    _M.TANH_FWD: Expression("tanh({x})"),
    _M.SIGMOID_FWD: Expression("sigmoid({x})"),
    _M.ELU_FWD: Expression("({x} > {T}(0) ? {x} : {elu_alpha} * expm1({x}))", parameters=("elu_alpha",)),
    _M.GELU_FWD: Expression("{x} * normal_cdf({x})"),
    _M.SOFTPLUS_FWD: Expression("softplus({x}, {softplus_beta})", parameters=("softplus_beta",)),
    _M.SWISH_FWD: Expression("swish({x}, {swish_beta})", parameters=("swish_beta",)),
    _M.GELU_APPROX_TANH_FWD: Expression("gelu_tanh({x})"),
    _M.RELU_BWD: _same(f"clipped_relu_gradient({{dy}}, {{x}}, {_RELU_CLIPS})", _RELU_PARAMETERS),
    _M.TANH_BWD: Expression("{dy} * tanh_slope({x})"),
    _M.SIGMOID_BWD: Expression("{dy} * sigmoid_slope({x})"),
    _M.ELU_BWD: Expression("({x} > {T}(0) ? {dy} : {dy} * {elu_alpha} * exp({x}))", parameters=("elu_alpha",)),
    _M.GELU_BWD: Expression("{dy} * gelu_slope({x})"),
    _M.SOFTPLUS_BWD: Expression("{dy} * sigmoid({softplus_beta} * {x})", parameters=("softplus_beta",)),
    _M.SWISH_BWD: Expression("{dy} * swish_slope({x}, {swish_beta})", parameters=("swish_beta",)),
    _M.GELU_APPROX_TANH_BWD: Expression("{dy} * gelu_tanh_slope({x})"),
    _M.CMP_EQ: _same("{T}({x} == {b})"),
    _M.CMP_NEQ: _same("{T}({x} != {b})"),
    _M.CMP_GT: _same("{T}({x} > {b})"),
    _M.CMP_GE: _same("{T}({x} >= {b})"),
    _M.CMP_LT: _same("{T}({x} < {b})"),
    _M.CMP_LE: _same("{T}({x} <= {b})"),
    _M.LOGICAL_AND: _same("{T}({x} != 0 && {b} != 0)"),
    _M.LOGICAL_OR: _same("{T}({x} != 0 || {b} != 0)"),
    _M.LOGICAL_NOT: _same("{T}({x} == 0)"),
    _M.GEN_INDEX: _same("convert<{T}>({index})"),
    _M.BINARY_SELECT: _same("({t} ? {x} : {b})"),
}
