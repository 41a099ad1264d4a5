"""The one tolerance table, and the comparison that reports where two arrays differ.

A result passes where |actual - expected| <= relative * |expected| + absolute + steps. Float defaults are those that
``torch.testing.assert_close`` uses; a sum of ``length`` terms of unit size adds the rounding of its accumulator.
Integers may be one off where they are rounded from float arithmetic, but behind exact sums only next to a tie. NaN
must meet NaN and an infinity the same infinity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases.oracle import Step, evaluate, steps, trace
from lowdnn.cases.ties import steps_at_ties
from lowdnn.enums import DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.reduction_pattern import descendants
from lowdnn.ops.base import HasArithmetic, Operation, RoundsInside, inputs_of
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.rnn_operation import RecurrentOperation
from lowdnn.ops.sdpa_fp8_backward import SdpaFp8Backward
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.plan import Plan

_MAX_SHOWN = 5

#: (relative, absolute) tolerance of one rounded result, by data type.
_BASE = {
    DataType.DOUBLE: (1e-13, 1e-13),
    DataType.FLOAT: (1.3e-6, 1e-5),
    DataType.HALF: (1e-3, 1e-5),
    DataType.BFLOAT16: (1.6e-2, 1e-5),
    DataType.FP8_E4M3: (0.125, 2.0**-9),
    DataType.FP8_E5M2: (0.25, 2.0**-16),
    DataType.FP8_E8M0: (1.0, 0.0),
}
#: Classes of tolerance, from the loosest to the tightest.
_WORST_FIRST = (
    ToleranceClass.CONTRACTION_TF32,
    ToleranceClass.CONTRACTION,
    ToleranceClass.REDUCTION,
    ToleranceClass.ROWS,
    ToleranceClass.POINTWISE,
)
_TF32_EPSILON = 2.0**-10
#: Roundings of unit size between a row's elements and its result.
_ROW_ROUNDINGS = 64
#: Change, in units of the type's epsilon, of a product of two normal factors when one of them is rounded to its other
#: neighbour: both factors are at most four standard deviations.
_OTHER_NEIGHBOUR = 16.0
#: The greatest error of Winograd's results by the size of tiles, for operands of unit size, in units of the factors'
#: epsilon and of the root of the number of terms: eight standard deviations or more. Sums in the type of the factors
#: double it.
_WINOGRAD_ERRORS = {NumericalNote.WINOGRAD_TILE_4x4: 4.0, NumericalNote.WINOGRAD_TILE_6x6: 16.0}
#: This is added to the root. The errors of n channels, or of n tiles in a filter gradient, are n products of normal
#: factors, and P(|sum| > s * (sqrt(2 * n * u) + u)) <= 2 * exp(-u) if one product has the deviation s, which is that of
#: 9 terms or of a tile's. The root allows for the first part; this is the second one for u = 24.
_WINOGRAD_TAIL = 9.0
#: Relative error of fp8 sums in tensor cores, which cut off terms this far below an instruction's greatest one.
_FAST_FP8_EPSILON = 2.0**-13
#: Tensor cores cut off each partial sum of n terms in fp32. The error that this adds is these shares of n, and of
#: n**1.5 for the deviations of the partial sums. On an H200 the shares were 0.0087 and, as one standard deviation,
#: 0.0049 for 512 to 15,360 terms.
_CUT_OFF = 0.01
_CUT_OFF_DEVIATIONS = 0.04


@dataclass(frozen=True)
class Tolerance:
    """``steps``: each element may differ by so much more, for integers of which some lie next to a tie."""

    relative: float
    absolute: float
    steps: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)

    def limits(self, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
        """The greatest difference from each element of ``wanted``."""
        limits = self.relative * np.abs(wanted) + self.absolute
        return limits if self.steps is None else limits + self.steps

    @property
    def of_two_results(self) -> Tolerance:
        """The tolerance of two results, relative to one of them, that have this one from the expected values each.

        From |a - e| <= r * |e| + t for both follows |a - b| <= 2 / (1 - r) * (r * |a| + t). An r of 1 is that of
        powers of two, which may be half and twice the expected one.
        """
        scale = 2 / (1 - min(self.relative, 0.5))
        steps = None if self.steps is None else 2 * self.steps
        return Tolerance(scale * self.relative, scale * self.absolute, steps)


#: The tolerance of integer data for which every sum is exact.
EXACT = Tolerance(0.0, 0.0)


def tolerance(
    op_class: ToleranceClass, data_type: DataType, length: int = 1, compute_type: DataType = DataType.FLOAT
) -> Tolerance:
    """The tolerance of an output of ``data_type`` that sums ``length`` terms of unit size in ``compute_type``.

    Each addition rounds a partial sum: the errors of a sum are a random walk, whose steps are a share of the partial
    sums. Their variance is about (epsilon / 5)**2 times the sum of the partial sums' squares. Partial sums that lead to
    a result s are (k / length) * s, with deviations of about sqrt(length) whatever s is: the linear term allows for the
    deviations, and sqrt(length) * epsilon, relative to s, for the rest.
    """
    relative, absolute = _BASE.get(data_type, (0.0, 0.0))
    sums = dtypes.info(accumulator_type(compute_type))
    epsilon = _FAST_FP8_EPSILON if compute_type is DataType.FAST_FLOAT_FOR_FP8 else sums.epsilon
    accumulated = epsilon * (_ROW_ROUNDINGS if op_class is ToleranceClass.ROWS else length)
    if dtypes.info(data_type).kind in (dtypes.Kind.SIGNED, dtypes.Kind.UNSIGNED):
        absolute = 1.0 if sums.kind is dtypes.Kind.FLOAT else 0.0
    if op_class is not ToleranceClass.POINTWISE:
        absolute += accumulated
    if op_class is ToleranceClass.REDUCTION:
        relative += accumulated
    if op_class in _WORST_FIRST[:2]:
        relative += sums.epsilon * float(np.sqrt(length))
    if op_class is ToleranceClass.CONTRACTION_TF32:
        relative += _TF32_EPSILON  # one product may be much larger than the others
        absolute += 4 * _TF32_EPSILON * float(np.sqrt(length))
    return Tolerance(relative, absolute)


@dataclass(frozen=True)
class Expected:
    """The expected storage array of an output, and the tolerance of a result."""

    values: NDArray[Any]
    allowed: Tolerance


def expected_outputs(
    graph: OperationGraph, inputs: Mapping[int, NDArray[Any]], notes: Collection[NumericalNote], length: int
) -> dict[int, Expected]:
    """By uid; ``notes`` and ``length`` as for ``tolerance_of``.

    Attention's outputs are compared with those of a graph that rounds nothing on its way: the error may be twice the
    greatest one of rounding each virtual tensor, since weights that are divided by their sum last round otherwise.
    """
    if not _is_attention(graph):
        return _expected(graph, steps(graph, inputs), notes, length)
    written = {tensor.uid: stored for tensor, stored in trace(graph, inputs)}
    exact, weight = evaluate(graph, inputs, rounds_virtual=False), _of_one_weight(graph, inputs, written)
    of_largest, share = _of_largest(graph), _of_one_rounding(graph)
    return {
        uid: Expected(
            exact[uid],
            _twice_the_error(
                graph.tensors[uid].data_type, written[uid], exact[uid], of_largest.get(uid, weight), share
            ),
        )
        for uid in exact
    }


def _expected(
    graph: OperationGraph, written: Sequence[Step], notes: Collection[NumericalNote], length: int
) -> dict[int, Expected]:
    """The outputs among ``written``. Integers behind exact sums may be rounded otherwise next to a tie."""
    ties = steps_at_ties(graph, written, _BASE[DataType.FLOAT][0])
    expected: dict[int, Expected] = {}
    for tensor, _, stored in written:
        if not tensor.is_virtual:
            allowed = tolerance_of(graph, tensor, notes, length)
            allowed = replace(allowed, steps=ties.get(tensor.uid)) if allowed == EXACT else allowed
            expected[tensor.uid] = Expected(stored, allowed)
    return expected


def _is_attention(graph: OperationGraph) -> bool:
    """Whether a contraction depends on a softmax, within one operation or in several."""
    if any(isinstance(op, RoundsInside) for op in graph.operations):
        return True
    behind = descendants(graph, (op for op in graph.operations if isinstance(op, Softmax)))
    return any(_is_contraction(op) and id(op) in behind for op in graph.operations)


def _of_one_weight(
    graph: OperationGraph, inputs: Mapping[int, NDArray[Any]], written: Mapping[int, NDArray[Any]]
) -> Tolerance:
    """Rounding may change a mean of values that a softmax weighs: one value by a share, several that cancel out by a
    share of their size. A weight is rounded to the type of a product's operands, and a score before it to its own
    type: e to the power of a score changes by as much as the score, which is itself a share of its size."""
    types = {op.a.data_type for op in graph.operations if isinstance(op, MatmulOperation)}
    share = max((dtypes.info(data_type).epsilon / 2 for data_type in types), default=0.0)
    share = max(share, _of_scores(graph, written))
    given = [tensor for tensor in graph.inputs if tensor.data_type in types and tensor.uid in inputs]
    values = (dtypes.to_values(inputs[tensor.uid], tensor.data_type) for tensor in given)
    return Tolerance(share, share * max(map(_size, values), default=0.0))


def _of_scores(graph: OperationGraph, written: Mapping[int, NDArray[Any]]) -> float:
    """The greatest share of a weight that rounding its score, and the multiple of it that the exponential takes, may
    change. The score of a key without weight does not count."""
    found = 0.0
    for op in graph.operations:
        if isinstance(op, Softmax) and not op.is_log and op.x.uid in written:
            values = (dtypes.to_values(written[tensor.uid], tensor.data_type) for tensor in (op.x, op.y))
            scores, weights = (np.nan_to_num(array, posinf=0.0, neginf=0.0) for array in values)
            found = max(found, dtypes.info(op.x.data_type).epsilon * float(np.abs(scores * weights).max(initial=0.0)))
    return found


def _of_largest(graph: OperationGraph) -> dict[int, Tolerance]:
    """Tolerances of the largest magnitudes of fp8 gradients by uid: rounding one operand to fp8 may change them."""
    found: dict[int, Tolerance] = {}
    for op in graph.operations:
        if isinstance(op, SdpaFp8Backward):
            epsilon = max(dtypes.info(tensor.data_type).epsilon for tensor in (op.q, op.d_o))
            found |= {tensor.uid: Tolerance(epsilon / 2, 0.0) for tensor in op.largest if not tensor.is_virtual}
    return found


def _of_one_rounding(graph: OperationGraph) -> float:
    """The greatest relative change of a value by one rounding inside an operation: to the coarsest type of its
    operands, since an output may have a finer one, or to TF32."""
    rounding = [op for op in graph.operations if isinstance(op, RoundsInside)]
    facts = (dtypes.info(tensor.data_type) for op in rounding for tensor in inputs_of(op).values())
    epsilons = [info.epsilon for info in facts if info.kind is dtypes.Kind.FLOAT]
    epsilons += [_TF32_EPSILON for op in rounding if isinstance(op, RecurrentOperation) and op.rnn.uses_tf32]
    return max(epsilons, default=0.0) / 2


def _twice_the_error(
    data_type: DataType, rounded: NDArray[Any], exact: NDArray[Any], least: Tolerance, share: float
) -> Tolerance:
    """Twice the greatest error of ``rounded``. Few elements may all round well: at least the share of their size that
    one may be off, and ``least``.

    share: the relative change that one rounding inside the operation may make.
    """
    values, wanted = (dtypes.to_values(array, data_type).astype(np.float64) for array in (rounded, exact))
    finite = np.isfinite(values) & np.isfinite(wanted)
    error = float(np.abs(values[finite] - wanted[finite]).max(initial=0.0))
    own = tolerance(ToleranceClass.ROWS, data_type, compute_type=_widest(data_type))
    absolute = max(2 * error, max(own.relative, share) * _size(wanted), least.absolute)
    return Tolerance(own.relative + least.relative, own.absolute + absolute)


def _widest(data_type: DataType) -> DataType:
    """The type in which an operation with results of ``data_type`` computes inside."""
    return DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT


def _size(values: NDArray[Any]) -> float:
    """Root mean square of the finite elements."""
    finite = values[np.isfinite(values)].astype(np.float64)
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def sums_exactly(plan: Plan) -> bool:
    """Whether the plan's sums of small integers are exact: those of transformed operands have fractions."""
    return not {NumericalNote.WINOGRAD, NumericalNote.FFT} & {*plan.numerical_notes}


def tolerance_of(graph: OperationGraph, tensor: Tensor, notes: Collection[NumericalNote], length: int) -> Tolerance:
    """The tolerance of a graph's output, from its operations and the plan's numerical notes.

    length: terms that are summed for one element of the contractions and reductions.
    """
    producer = graph.producer(tensor)
    if isinstance(producer, ResampleForward) and producer.index is tensor:
        return EXACT
    rounding = [op for op in graph.operations if op.tolerance_class is not ToleranceClass.EXACT]
    classes = {_class_of(op, notes): _sum_type(op, notes) for op in rounding}
    if not classes:
        return EXACT
    worst = next(op_class for op_class in _WORST_FIRST if op_class in classes)
    allowed = tolerance(worst, tensor.data_type, length, classes[worst])
    if worst in _WORST_FIRST[:2]:
        rounded = _of_rounded_operands(graph) + _of_rounded_factors(graph, notes, length)
        is_cut_off = NumericalNote.TENSOR_CORE in notes and classes[worst] is DataType.FLOAT
        cut_off = dtypes.info(DataType.FLOAT).epsilon * length if is_cut_off else 0.0
        absolute = allowed.absolute + rounded + _CUT_OFF_DEVIATIONS * cut_off * float(np.sqrt(length))
        allowed = Tolerance(allowed.relative + _CUT_OFF * cut_off, absolute * _factor(graph))
    if isinstance(producer, ReductionOperation | GenStats) and worst in _WORST_FIRST[:2]:
        terms = tolerance(worst, producer.x.data_type, length, classes[worst])
        return _summed(terms, allowed, producer.x.element_count // max(tensor.element_count, 1), length)
    if isinstance(producer, NormBackward) and tensor.uid != producer.dx.uid:
        terms_of_sum = producer.x.element_count // max(tensor.element_count, 1)
        return tolerance(ToleranceClass.REDUCTION, tensor.data_type, terms_of_sum, producer.compute_type)
    return allowed


def _of_rounded_operands(graph: OperationGraph) -> float:
    """The tolerance for operations before a contraction: a value next to a tie may be rounded the other way in a fused
    kernel."""
    produced = {
        tensor.data_type
        for op in graph.operations
        if _is_contraction(op)
        for tensor in inputs_of(op).values()
        if isinstance(graph.producer(tensor), PointwiseOperation)
    }
    floats = [dtypes.info(data_type) for data_type in produced if dtypes.info(data_type).kind is dtypes.Kind.FLOAT]
    return _OTHER_NEIGHBOUR * max((facts.epsilon for facts in floats), default=0.0)


def _of_rounded_factors(graph: OperationGraph, notes: Collection[NumericalNote], length: int) -> float:
    """The tolerance for a convolution by Winograd's filtering, which rounds sums of its operands; otherwise 0."""
    error = max((_WINOGRAD_ERRORS.get(note, 0.0) for note in notes), default=0.0)
    if not error:
        return 0.0
    operands = (tensor for op in graph.operations if _is_contraction(op) for tensor in inputs_of(op).values())
    types = {tensor.data_type for tensor in operands}
    if DataType.FLOAT in types:
        epsilon = _TF32_EPSILON if NumericalNote.TF32_INPUTS in notes else 2 * dtypes.info(DataType.FLOAT).epsilon
    else:
        epsilon = max(dtypes.info(data_type).epsilon for data_type in types)
    return error * epsilon * (float(np.sqrt(length)) + _WINOGRAD_TAIL)


def _factor(graph: OperationGraph) -> float:
    """The largest |alpha| of the graph's convolutions, at least 1."""
    return max((1.0, *(abs(op.alpha) for op in graph.operations if isinstance(op, ConvolutionOperation))))


def _summed(terms: Tolerance, result: Tolerance, count: int, length: int) -> Tolerance:
    """The tolerance of a sum of ``count`` values, or of their squares, each a sum of ``length`` products of unit size.

    The values' errors are independent, and the values a few standard deviations, sqrt(length), in size.
    """
    size = 4 * float(np.sqrt(length))
    error = (terms.relative * size + terms.absolute) * max(1.0, 2 * size)
    return Tolerance(result.relative, result.absolute + 4 * float(np.sqrt(count)) * error)


def differences(actual: NDArray[Any], expected: NDArray[Any], data_type: DataType, allowed: Tolerance) -> str:
    """A text with the number of elements that differ, the first one's coordinates and both values; empty if all pass.

    Arrays are storage arrays. The signs of zeros and the bits of NaNs may differ.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"expected {expected.dtype} {expected.shape}, got {actual.dtype} {actual.shape}"
    got, wanted = (dtypes.to_values(array, data_type).astype(np.float64) for array in (actual, expected))
    with np.errstate(invalid="ignore"):
        near = np.abs(got - wanted) <= allowed.limits(wanted)
    same = near & np.isfinite(wanted) | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    return "" if bool(same.all()) else _report(got, wanted, ~same, allowed)


def largest_share(actual: NDArray[Any], expected: NDArray[Any], data_type: DataType, allowed: Tolerance) -> float:
    """The greatest difference of elements as a share of what ``allowed`` lets each one differ; storage arrays.

    At most 1 where ``differences`` finds none; infinite where an element may not differ at all, or is not finite.
    """
    got, wanted = (dtypes.to_values(array, data_type).astype(np.float64) for array in (actual, expected))
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.abs(got - wanted) / allowed.limits(wanted)
    shares[(got == wanted) | (np.isnan(got) & np.isnan(wanted))] = 0.0
    return float(np.where(np.isnan(shares) | ~np.isfinite(wanted) & (shares != 0), np.inf, shares).max(initial=0.0))


def largest_error(actual: NDArray[Any], expected: NDArray[Any], data_type: DataType) -> float:
    """The greatest difference of finite elements, in units of the root mean square of ``expected``; storage arrays."""
    got, wanted = (dtypes.to_values(array, data_type).astype(np.float64) for array in (actual, expected))
    finite = np.isfinite(got) & np.isfinite(wanted)
    error = float(np.abs(got[finite] - wanted[finite]).max(initial=0.0))
    return error / (_size(wanted) or 1.0)


def _report(got: NDArray[np.float64], wanted: NDArray[np.float64], bad: NDArray[np.bool_], allowed: Tolerance) -> str:
    places = np.argwhere(bad)
    lines = [f"{len(places)} of {bad.size} elements differ ({allowed})"]
    for place in places[:_MAX_SHOWN]:
        index = tuple(int(i) for i in place)
        lines.append(f"  at {index}: got {got[index]!r}, expected {wanted[index]!r}")
    return "\n".join(lines)


def _is_contraction(operation: Operation) -> bool:
    return operation.tolerance_class is ToleranceClass.CONTRACTION


def _class_of(operation: Operation, notes: Collection[NumericalNote]) -> ToleranceClass:
    """The class that the operation declares, or that of a contraction whose operands the plan rounds to TF32."""
    is_tf32 = _is_contraction(operation) and NumericalNote.TF32_INPUTS in notes
    return ToleranceClass.CONTRACTION_TF32 if is_tf32 else operation.tolerance_class


def _sum_type(operation: Operation, notes: Collection[NumericalNote]) -> DataType:
    """The type of an operation's sums: that of tensor cores for contractions of fp8, otherwise its compute type."""
    if _is_contraction(operation) and NumericalNote.TENSOR_CORE in notes:
        operands = inputs_of(operation).values()
        if any(tensor.data_type in dtypes.FP8_TYPES for tensor in operands):
            return DataType.FAST_FLOAT_FOR_FP8
    return cast(HasArithmetic, operation).compute_type
