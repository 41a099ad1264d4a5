"""Products of FLOAT by three TF32 products: layouts, accuracy, special values, notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.driver import open_driver
from lowdnn.engines.base import Engine, keeps_precision
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import DataType, HeurMode, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.runtime import Runtime
from tests.support.builders import matmul_graph
from tests.support.data import fresh_seed
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_close, check_exact, run_plan
from tests.support.runtime import open_runtime

MATMUL = engine_named("matmul_mma_tf32x3")
CONVOLUTION = engine_named("conv_implicit_gemm_mma_tf32x3")
DIRECT = engine_named("matmul_simt")
ON_WGMMA = engine_named("matmul_wgmma_tf32x3")
FORWARD_ON_WGMMA = engine_named("conv_fprop_wgmma_tf32x3")
on_both = pytest.mark.parametrize("engine", [MATMUL, ON_WGMMA], ids=lambda engine: engine.name)
#: The error of a small number's parts.
LEAST_ERRORS = {MATMUL.name: 2.0**-146, ON_WGMMA.name: 2.0**-136}
LAYOUTS = (Layout.ROW_MAJOR, Layout.TRANSPOSED)
DIRECTIONS = ("fprop", "dgrad", "wgrad")
#: The greatest error of a product in units of that of fp32 units, which sum one term after the other.
MOST_TIMES_DIRECT = 4.0


def product(runtime: Runtime, engine: Engine, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    graph = matmul_graph((), a.shape[0], b.shape[1], a.shape[1], data_type=DataType.FLOAT)
    (found,) = run_plan(runtime, engine.plan(graph, SM_90A, {}), graph, {1: a, 2: b}).values()
    return found.astype(np.float64)


@paired(("tile", (64, 32)), ("a", LAYOUTS), ("b", LAYOUTS), ("splits", (1, 2)))
def test_layouts_and_tails_of_products(racing: Runtime, tile: int, a: Layout, b: Layout, splits: int) -> None:
    graph = matmul_graph((), 35, 67, 77, data_type=DataType.FLOAT, a_layout=a, b_layout=b)
    choices = {KnobType.TILE_M: tile, KnobType.TILE_N: tile, KnobType.SPLIT_K_SLC: splits}
    check_exact(racing, MATMUL, graph, length=77, choices=choices)
    check_close(racing, MATMUL, graph, length=77, choices=choices)


@paired(("direction", DIRECTIONS), ("channels", (3, 16)), ("layout", ("nhwc", "nchw")))
def test_convolutions(device: Runtime, direction: str, channels: int, layout: str) -> None:
    case = parse_case(f"conv n=2 c={channels} hw=7x6 k=12 rs=3x3 pad=1 dir={direction} layout={layout} dtype=fp32")
    check_exact(device, CONVOLUTION, case.graph(), length=case.length)
    check_close(device, CONVOLUTION, case.graph(), length=case.length)


def test_epilogues_see_whole_sums(device: Runtime) -> None:
    graph = matmul_graph((2,), 33, 40, 24, data_type=DataType.FLOAT, epilogue=(PointwiseMode.RELU_FWD,))
    check_exact(device, MATMUL, graph, length=24)


@on_both
def test_a_product_of_one_term_is_off_by_what_the_lowest_parts_give(device: Runtime, engine: Engine) -> None:
    """Dropped are the product of both low parts and what TF32 rounds off these: 3 * 2^-22 of the product, and fp32's
    own rounding."""
    a, b = np.random.default_rng(fresh_seed()).standard_normal((2, 64)).astype(np.float32)
    exact = np.outer(a.astype(np.float64), b.astype(np.float64))
    found = product(device, engine, a.reshape(-1, 1), b.reshape(1, -1))
    assert (np.abs(found - exact) <= (3 * 2.0**-22 + 2.0**-24) * np.abs(exact)).all()


@on_both
@pytest.mark.parametrize("k", [8, 40, 1000])
def test_errors_are_those_of_fp32(device: Runtime, engine: Engine, k: int) -> None:
    rng = np.random.default_rng(fresh_seed())
    a = rng.standard_normal((64, k)).astype(np.float32)
    b = rng.standard_normal((k, 64)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error, direct = (np.sqrt(np.mean((product(device, by, a, b) - exact) ** 2)) for by in (engine, DIRECT))
    assert error <= MOST_TIMES_DIRECT * direct


@on_both
def test_ranges(device: Runtime, engine: Engine) -> None:
    """Numbers whose low parts are subnormal, those that TF32 rounds to infinity, infinities, NaN and zero.

    A number that TF32 rounds to zero is zero beside an infinity, and a product of numbers that overflows may be NaN.
    """
    largest = float.fromhex("0x1.ffe8p127")
    special = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, largest, -largest, 1e20, 2.0**-126, 1.37 * 2.0**-120]
    special += [3e-42, -1.1e-40, 0.1, 1 / 3]
    values = np.array(special, np.float32)
    seen = np.where(np.abs(values) < 2.0**-137, 0, values)
    found = product(device, engine, values.reshape(-1, 1), values.reshape(1, -1))
    with np.errstate(all="ignore"):
        wanted = np.outer(values, values).astype(np.float64)
        wanted = np.where(np.isinf(wanted), np.outer(seen, seen), wanted)
        overflows = np.isinf(wanted) & np.isfinite(np.add.outer(abs(values) / 2, abs(values) / 2))
        least = LEAST_ERRORS[engine.name] * np.add.outer(np.abs(values), np.abs(values))
        allowed = 2.0**-21 * np.abs(wanted) + least + 2.0**-148
        same = (
            (found == wanted) | (np.isnan(found) & (np.isnan(wanted) | overflows)) | (np.abs(found - wanted) <= allowed)
        )
    assert same.all(), [(values[i], values[j], found[i, j], wanted[i, j]) for i, j in np.argwhere(~same)]


@on_both
def test_an_infinity_reaches_its_row_and_column_alone(device: Runtime, engine: Engine) -> None:
    rng = np.random.default_rng(fresh_seed())
    a, b = (rng.uniform(0.5, 2.0, (40, 40)).astype(np.float32) for _ in range(2))
    a[3, 5], b[7, 9] = np.inf, -np.inf
    found = product(device, engine, a, b)
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(found[~np.isfinite(found)], wanted[~np.isfinite(wanted)], equal_nan=True)


def test_true_fp32_is_chosen_where_tf32_is_not_allowed() -> None:
    graph = parse_case("conv n=32 c=256 hw=28x28 k=256 rs=3x3 pad=1 stride=2 dtype=fp32").graph()
    keeping = [engine for engine in ENGINES if keeps_precision(engine, graph)]
    best = rank(graph, SM_90A, HeurMode.A, keeping).best
    assert best is not None
    assert best.engine is FORWARD_ON_WGMMA
    assert best.plan.numerical_notes == (NumericalNote.TF32X3,)
    assert best.plan.launches[-1].work.flops >= 3 * graph.operations[0].flops  # type: ignore[attr-defined]


@pytest.mark.parametrize("data_type", ["fp16", "bf16", "int8"])
def test_other_types_are_refused(data_type: str) -> None:
    matmul, convolution = "matmul m=8 n=8 k=8", "conv n=1 c=8 hw=5x5 k=8 rs=3x3"
    for engine, line in (
        (MATMUL, matmul),
        (ON_WGMMA, matmul),
        (CONVOLUTION, convolution),
        (FORWARD_ON_WGMMA, convolution),
    ):
        refusal = engine.refuse(parse_case(f"{line} dtype={data_type}").graph(), SM_90A)
        assert refusal is not None
        assert "FLOAT, got" in refusal.reason or "FLOAT x FLOAT, got" in refusal.reason


@pytest.mark.parametrize("policy", [*POLICIES, "fuzz(7),early,races"])
def test_policies(policy: str, kernel_cache_dir: Path) -> None:
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        check_exact(runtime, MATMUL, matmul_graph((2,), 33, 40, 24, data_type=DataType.FLOAT), length=24)
