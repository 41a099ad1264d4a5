from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.compare import (
    EXACT,
    Tolerance,
    differences,
    expected_outputs,
    largest_error,
    largest_share,
    sums_exactly,
    tolerance,
    tolerance_of,
)
from lowdnn.cases.oracle import trace
from lowdnn.engines.registry import engine_named
from lowdnn.enums import DataType, NumericalNote
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tolerance import ToleranceClass
from tests.support.data import fresh_seed

LOOSE = Tolerance(0.1, 0.0)
F32 = DataType.FLOAT
Factors = tuple[NDArray[Any], NDArray[Any]]
Wrong = Callable[[Factors, np.random.Generator], NDArray[Any]]


def report(actual: list[float], expected: list[float], allowed: Tolerance = EXACT) -> str:
    return differences(np.array(actual, np.float32), np.array(expected, np.float32), DataType.FLOAT, allowed)


def test_equal_arrays() -> None:
    assert report([1, np.nan, np.inf, -0.0], [1, np.nan, np.inf, 0.0]) == ""
    assert report([], []) == ""


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1.2], [1.0]),
        ([np.nan], [1.0]),
        ([1.0], [np.nan]),
        ([np.inf], [1.0]),
        ([1e30], [np.inf]),
        ([-np.inf], [np.inf]),
        ([0.0], [np.nan]),
    ],
)
def test_differences_are_found(actual: list[float], expected: list[float]) -> None:
    assert "1 of 1 elements differ" in report(actual, expected, LOOSE)


def test_report_has_count_coordinates_and_values() -> None:
    expected = np.zeros((3, 4), np.float32)
    actual = expected.copy()
    actual[1, 2], actual[2, 0] = 5, 7
    text = differences(actual, expected, DataType.FLOAT, EXACT)
    assert "2 of 12 elements differ" in text
    assert "(1, 2): got np.float64(5.0), expected np.float64(0.0)" in text or "(1, 2): got 5.0" in text
    assert "(2, 0)" in text


def test_shapes_and_storage_must_match() -> None:
    x = np.zeros(3, np.float32)
    assert "(3, 1)" in differences(x.reshape(3, 1), x, DataType.FLOAT, LOOSE)
    assert "float64" in differences(x.astype(np.float64), x, DataType.FLOAT, LOOSE)


def test_the_largest_error_is_relative_to_the_results() -> None:
    actual, expected = np.array([3.0, -4.5, np.inf], np.float32), np.array([3.0, -4.0, np.inf], np.float32)
    assert largest_error(actual, expected, DataType.FLOAT) == pytest.approx(0.5 / np.sqrt(12.5))
    assert largest_error(actual[:1], np.zeros(1, np.float32), DataType.FLOAT) == 3.0


def test_sums_of_transformed_operands_are_not_exact() -> None:
    graph = parse_case("conv n=1 c=8 hw=8x8 k=8 rs=3x3 dtype=fp32").graph()
    names = ("conv_direct", "conv_winograd_2x2_fp32")
    assert [sums_exactly(engine_named(name).plan(graph, SM_90A, {})) for name in names] == [True, False]


def test_tolerances() -> None:
    assert tolerance(ToleranceClass.POINTWISE, DataType.FLOAT) == Tolerance(1.3e-6, 1e-5)
    assert tolerance(ToleranceClass.POINTWISE, DataType.INT32, compute_type=DataType.INT32) == EXACT
    assert tolerance(ToleranceClass.POINTWISE, DataType.INT8).absolute == 1
    assert tolerance(ToleranceClass.POINTWISE, DataType.BOOLEAN) == EXACT
    short, long = (tolerance(ToleranceClass.CONTRACTION, DataType.FLOAT, length).absolute for length in (1, 1000))
    assert short < long < 2e-4
    assert tolerance(ToleranceClass.CONTRACTION_TF32, DataType.FLOAT, 1000).absolute > long


def test_the_widest_class_of_a_graph_counts() -> None:
    graph = parse_case("matmul m=4 n=4 k=64 epilogue=relu").graph()
    (output,) = graph.outputs
    plain = tolerance_of(graph, output, (), 64)
    assert plain == tolerance(ToleranceClass.CONTRACTION, DataType.FLOAT, 64)
    tf32 = tolerance_of(graph, output, (NumericalNote.TF32_INPUTS,), 64)
    assert tf32 == tolerance(ToleranceClass.CONTRACTION_TF32, DataType.FLOAT, 64)


def test_sums_of_fp8_in_tensor_cores_keep_fewer_bits() -> None:
    graph = parse_case("matmul m=4 n=4 k=64 layout=nt dtype=e4m3 out=fp32").graph()
    found = [tolerance_of(graph, graph.outputs[0], notes, 64).absolute for notes in ((), (NumericalNote.TENSOR_CORE,))]
    assert found[0] < 2e-5
    assert found[1] == tolerance(ToleranceClass.CONTRACTION, DataType.FLOAT, 64, DataType.FAST_FLOAT_FOR_FP8).absolute


def test_tensor_cores_cut_off_partial_sums() -> None:
    """The model of a sum in steps of 16 terms, each cut off to 24 bits: its errors lie within the tolerance, and
    some beyond that of sums that are rounded."""
    terms, steps = 16384, 1024
    rng = np.random.default_rng()
    parts = rng.standard_normal((2000, steps)) * 4.0
    total = np.zeros(2000)
    for step in range(steps):
        fraction, exponent = np.frexp(total + parts[:, step])
        total = np.ldexp(np.trunc(np.ldexp(fraction, 24)), exponent - 24)
    graph = parse_case(f"matmul m=4 n=4 k={terms} dtype=fp16 out=fp32").graph()
    rounded, cut = (tolerance_of(graph, graph.outputs[0], notes, terms) for notes in ((), (NumericalNote.TENSOR_CORE,)))
    wanted = parts.sum(1)
    errors = np.abs(total - wanted)
    assert (errors <= cut.limits(wanted)).all()
    assert (errors > rounded.limits(wanted)).any()
    assert cut.absolute < 1e-4 * terms**0.5


def test_a_row_of_one_key_is_off_by_the_rounding_of_its_weight() -> None:
    case = parse_case("sdpa b=1 h=1 q=2 d=32 kv=1 sink=yes dtype=e4m3 out=fp32")
    graph = case.graph()
    y = graph.outputs[-1]
    expected = expected_outputs(graph, case.inputs(1, exact=False), (), case.length)[y.uid]
    assert not differences(expected.values * np.float32(1 - 2**-4), expected.values, y.data_type, expected.allowed)


def test_a_factor_of_a_contraction_multiplies_its_error() -> None:
    plain, doubled = (parse_case(f"conv n=1 c=8 hw=4x4 k=8 rs=3x3 pad=1{more}").graph() for more in ("", " alpha=-2"))
    allowed = [tolerance_of(graph, graph.outputs[0], (), 72) for graph in (plain, doubled)]
    assert allowed[1] == Tolerance(allowed[0].relative, 2 * allowed[0].absolute)


def test_an_operand_rounded_before_a_contraction_may_be_one_unit_off() -> None:
    plain, scaled = (
        parse_case(f"matmul m=4 n=4 k=64 layout=nt dtype=fp16{more}").graph() for more in ("", " prologue=scale+relu")
    )
    found = [tolerance_of(graph, graph.outputs[0], (), 64) for graph in (plain, scaled)]
    assert found[0] == tolerance(ToleranceClass.CONTRACTION, DataType.HALF, 64)
    assert found[1] == Tolerance(found[0].relative, found[0].absolute + 16 * 2.0**-10)


def test_a_scaled_operand_next_to_a_tie_passes() -> None:
    """One operand of these data is 3.9189453 after two roundings and 3.9189456 after one: fp16 differs."""
    case = parse_case("conv n=1 c=8 hw=6x6 k=16 rs=3x3 pad=1 dtype=fp16 prologue=scale+bias+relu")
    graph, inputs = case.graph(), case.inputs(1028051, exact=False)
    stored = {tensor.uid: value for tensor, value in trace(graph, inputs)}
    x, scale, bias = (inputs[tensor.uid].astype(np.float64) for tensor in graph.inputs[:3])
    fused = np.maximum((x * scale + bias).astype(np.float32), 0).astype(np.float16)
    (convolution,) = (op for op in graph.operations if isinstance(op, ConvolutionForward))
    assert np.argwhere(fused != stored[convolution.x.uid]).tolist() == [[0, 5, 1, 4]]
    y = convolution.reference({"x": fused.astype(np.float64), "w": inputs[convolution.w.uid].astype(np.float64)})["y"]
    allowed = tolerance_of(graph, convolution.y, (), case.length)
    plain = tolerance(ToleranceClass.CONTRACTION, DataType.HALF, case.length)
    assert differences(y.astype(np.float16), stored[convolution.y.uid], DataType.HALF, plain)
    assert not differences(y.astype(np.float16), stored[convolution.y.uid], DataType.HALF, allowed)


def test_shares_of_a_tolerance() -> None:
    """The greatest share is 1 where an element lies at the edge, and ``differences`` begins behind it."""
    seed = int(np.random.default_rng().integers(2**32))
    rng = np.random.default_rng(seed)
    allowed = Tolerance(1e-3, 1e-3)
    expected = rng.standard_normal(50).astype(np.float32)
    for factor in (0.5, 0.99, 1.01, 3.0):
        actual = expected.astype(np.float64)
        place = int(rng.integers(50))
        actual[place] += factor * (1e-3 * abs(actual[place]) + 1e-3)
        share = largest_share(actual.astype(np.float32), expected, DataType.FLOAT, allowed)
        assert share == pytest.approx(factor, rel=1e-2), seed
        assert bool(differences(actual.astype(np.float32), expected, DataType.FLOAT, allowed)) is (factor > 1), seed


@pytest.mark.parametrize(
    ("actual", "expected", "share"),
    [
        (np.inf, np.inf, 0.0),
        (np.nan, np.nan, 0.0),
        (0.0, np.inf, np.inf),
        (np.nan, 0.0, np.inf),
        (-np.inf, np.inf, np.inf),
        (np.inf, 1.0, np.inf),
    ],
)
def test_shares_of_special_values(actual: float, expected: float, share: float) -> None:
    found, wanted = (np.array([value, 1.0], np.float32) for value in (actual, expected))
    assert largest_share(found, wanted, DataType.FLOAT, Tolerance(0.1, 0.1)) == share
    assert largest_share(found, wanted, DataType.FLOAT, EXACT) == share


def summed(rng: np.random.Generator, side: int, length: int) -> tuple[Factors, NDArray[Any]]:
    """Two factors (length, side) of unit size, and the float64 sums of all their products (side, side)."""
    one, other = (rng.standard_normal((length, side)).astype(np.float32) for _ in range(2))
    return (one, other), one.astype(np.float64).T @ other.astype(np.float64)


def one_by_one(factors: Factors) -> NDArray[Any]:
    """The sums in fp32, each of which adds its rounded products one behind the other: the worst order of all."""
    one, other = factors
    sums = np.zeros((one.shape[1], other.shape[1]), np.float32)
    product = np.empty_like(sums)
    for row, column in zip(one, other, strict=True):
        np.multiply(row[:, None], column, out=product)
        sums += product
    return sums


@pytest.mark.parametrize(("length", "blocks"), [(300, 8), (5000, 3)])
def test_right_sums_are_within_the_tolerance(length: int, blocks: int) -> None:
    """About a million sums. The errors have an exponential tail: ten times as many need a quarter more at most."""
    rng, allowed = np.random.default_rng(seed := fresh_seed()), tolerance(ToleranceClass.CONTRACTION, F32, length)
    for _ in range(blocks):
        factors, wanted = summed(rng, 512, length)
        assert largest_share(one_by_one(factors), wanted.astype(np.float32), F32, allowed) < 0.9, f"seed {seed}"


def without_a_term(factors: Factors, rng: np.random.Generator) -> NDArray[Any]:
    place = int(rng.integers(len(factors[0])))
    one, other = (np.delete(factor, place, axis=0) for factor in factors)
    return one_by_one((one, other))


def of_coarse_factors(factors: Factors, rng: np.random.Generator) -> NDArray[Any]:
    """The sums of factors with the 10 bits of TF32."""
    one, other = ((factor.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for factor in factors)
    return one_by_one((one, other))


def with_coarse_parts(factors: Factors, rng: np.random.Generator) -> NDArray[Any]:
    """The sums of two halves, of which one is rounded to fp16 on its way."""
    half = len(factors[0]) // 2
    parts = [one_by_one((one, other)) for one, other in zip(*((f[:half], f[half:]) for f in factors), strict=True)]
    return parts[0].astype(np.float16).astype(np.float32) + parts[1]


@pytest.mark.parametrize("wrong", [without_a_term, of_coarse_factors, with_coarse_parts])
@pytest.mark.parametrize("length", [16, 300, 5000])
def test_sums_that_are_nearly_right_are_not(wrong: Wrong, length: int) -> None:
    rng = np.random.default_rng(seed := fresh_seed())
    factors, wanted = summed(rng, 64, length)
    allowed = tolerance(ToleranceClass.CONTRACTION, F32, length)
    found = differences(wrong(factors, rng), wanted.astype(np.float32), F32, allowed)
    assert int(found.split(" of ", maxsplit=1)[0]) > 64 * 64 // 4, f"seed {seed}"


def test_short_sums_have_little_more() -> None:
    """The tolerance of a result as large as the root of its terms' number grows by 30 % at most up to 64 terms."""
    for length in (1, 16, 64):
        allowed = tolerance(ToleranceClass.CONTRACTION, F32, length)
        before = 1e-5 + length * 2.0**-23 + 1.3e-6 * np.sqrt(length)
        assert allowed.absolute + allowed.relative * np.sqrt(length) < 1.3 * before
