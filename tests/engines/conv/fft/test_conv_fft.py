"""``conv_fft``: the three convolutions as products of spectra."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2, prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A, spec_named
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.data import real_values
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cases.oracle import evaluate
from lowdnn.cli.case_results import Request, results
from lowdnn.driver import open_driver
from lowdnn.engines.conv.fft.conv_fft import ConvFft
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, KnobType, NumericalNote
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.pairs import paired
from tests.support.running import check_close, run_plan
from tests.support.runtime import open_runtime

ENGINE = ConvFft()
DIRECTIONS = ("fprop", "dgrad", "wgrad")

GEOMETRIES = (
    "n=2 c=3 k=3 groups=3 hw=40 rs=31 pad=15",
    "n=3 c=2 k=6 groups=2 hw=23 rs=23 pad=22:0",  # causal, with a filter as long as the sequence
    "n=2 c=3 k=5 hw=14x13 rs=5x3 pad=2:0x1:3 dil=2x3 mode=flipped",
    "n=1 c=5 k=5 groups=5 hw=17x19 rs=7x11 pad=3x5",
    "n=1 c=4 k=6 groups=2 hw=5x4x7 rs=3x1x5 pad=1x0x2:1 dil=1x1x2",
    "n=2 c=1 k=1 hw=1 rs=1",
    "n=1 c=2 k=3 hw=1x9 rs=1x4 pad=0x6",
    "n=2 c=3 k=2 hw=6 rs=3 stride=4",  # one output alone
    "n=1 c=1 k=1 hw=101 rs=97 pad=40:13",
)


@pytest.fixture
def racing(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        yield runtime


def case(shape: str, direction: str = "fprop", words: str = "") -> ConvolutionCase:
    parsed = parse_case(f"conv dir={direction} {shape} {words}")
    assert isinstance(parsed, ConvolutionCase)
    return parsed


def check(device: Runtime, parsed: ConvolutionCase, values: int | None = None) -> Plan:
    """Normal data must be within the tolerance table, that of sums in fp32."""
    choices = {} if values is None else {KnobType.TILE_SIZE: values}
    return check_close(device, ENGINE, parsed.graph(), length=parsed.length, choices=choices)


@paired(
    ("direction", DIRECTIONS),
    ("words", ("layout=nchw", "layout=nhwc dtype=bf16 align=2", "layout=nhwc dtype=fp16", "layout=nhwc align=4")),
    ("geometry", GEOMETRIES),
)
def test_geometries(racing: Runtime, geometry: str, words: str, direction: str) -> None:
    check(racing, case(geometry, direction, words), 64)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", ["n=2 c=3 k=3 groups=3 hw=50 rs=9 pad=4", "n=1 c=3 k=5 hw=11x13 rs=5x3 pad=2"])
def test_every_scheduling_policy(scheduled: Runtime, shape: str, direction: str) -> None:
    check(scheduled, case(shape, direction), 64)


@pytest.mark.parametrize(("values", "n"), [(256, 2), (8192, 2), (32768, 1)])
def test_a_filter_as_long_as_the_sequence(racing: Runtime, values: int, n: int) -> None:
    """In one window, and in pieces."""
    plan = check(
        racing, case(f"n={n} c=2 k=2 groups=2 hw={values // 3} rs={values // 4} pad={values // 4 - 1}:0"), values
    )
    assert len(plan.launches) == 2
    if values < 4096:
        plan = check(
            racing, case(f"n=1 c=2 k=2 groups=2 hw={values} rs={values} pad={values - 1}:0 dtype=bf16"), values
        )
        assert len(plan.launches) == 4


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("geometry", "is_half"),
    [
        ("groups=3 hw=32 rs=32 pad=31:0", True),
        ("groups=3 hw=21 rs=9 pad=8:3", True),
        ("groups=3 hw=32 rs=32 pad=15:16", False),
        ("hw=20 rs=3 pad=4", True),  # its gradient of the data needs more of dy than it has targets
        ("hw=40 rs=31 pad=15", True),  # two windows, whose targets do not fill a half
    ],
)
def test_empty_halves(racing: Runtime, geometry: str, is_half: bool, direction: str) -> None:
    """Kernels of causal convolutions leave second halves out, and so do others whose lines have room for that. The
    targets of a filter gradient are as few as the taps."""
    plan = check(racing, case(f"n=2 c=3 k=3 {geometry} layout=nchw epilogue=bias", direction), 64)
    assert dict(plan.kernels[-1].parameters)["HALF"] == (is_half or direction == "wgrad")


def test_spaced_targets_of_one_window(racing: Runtime) -> None:
    """The targets of a dilated filter's gradient do not lie side by side, so that no half is left out."""
    check(racing, case("n=1 c=2 k=2 groups=2 hw=21 rs=5 pad=8:3 dil=2 layout=nchw", "wgrad"), 64)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_device(device: Runtime, direction: str) -> None:
    check(device, case("n=2 c=4 k=4 groups=4 hw=60 rs=33 pad=32:0 layout=nchw alpha=2 beta=1", direction))
    check(device, case("n=2 c=3 k=9 hw=12x10 rs=5x3 pad=2 dtype=fp16 epilogue=scale+sigmoid", direction))
    check(device, case("n=1 c=2 k=2 groups=2 hw=9x40 rs=7x31 pad=3x15 dtype=bf16 layout=nchw out=fp32", direction), 256)


def test_random_shapes(racing: Runtime) -> None:
    seed = fresh_seed()
    random = Random(seed)
    for _ in range(3):
        line = random_line(random)
        graph = parse_case(line).graph()
        (knob,) = ENGINE.knobs(graph, SM_90A)
        values = random.choice(knob.values[:3])
        try:
            check_close(racing, ENGINE, graph, length=parse_case(line).length, choices={knob.type: values})
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {line}, {values} values") from error


def random_line(random: Random) -> str:
    spatial = random.choice((1, 1, 2, 2, 3))
    extents = [random.randint(1, (150, 18, 8)[spatial - 1]) for _ in range(spatial)]
    dilations = [random.choice((1, 1, 2, 3)) for _ in range(spatial)]
    pads = [(random.randint(0, 4), random.randint(0, 4)) for _ in range(spatial)]
    most = [(e + sum(pad) - 1) // d + 1 for e, d, pad in zip(extents, dilations, pads, strict=True)]
    taps = [random.randint(1, count) for count in most]
    groups = random.choice((1, 1, 2, 5))
    words = {
        "n": random.randint(1, 3),
        "c": groups * random.choice((1, 1, 2, 5)),
        "k": groups * random.choice((1, 2, 6)),
        "groups": groups,
        "hw": "x".join(map(str, extents)),
        "rs": "x".join(map(str, taps)),
        "pad": "x".join(f"{pre}:{post}" for pre, post in pads),
        "dil": "x".join(map(str, dilations)),
        "dir": random.choice(DIRECTIONS),
        "dtype": random.choice(("fp32", "fp16", "bf16")),
        "layout": random.choice(("nchw", "nhwc")),
        "mode": random.choice(("cross", "flipped")),
    }
    return "conv " + " ".join(f"{word}={value}" for word, value in words.items())


def exact_of(parsed: ConvolutionCase, inputs: dict[int, NDArray[Any]]) -> NDArray[np.float64]:
    """The result in float64."""
    wide = replace(parsed, dtype=DataType.DOUBLE).graph()
    (expected,) = evaluate(wide, {uid: array.astype(np.float64) for uid, array in inputs.items()}).values()
    return expected


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("values", [256, 4096])
def test_error_is_within_the_stated_bound(device: Runtime, values: int, direction: str) -> None:
    """The root mean square of errors is that of the engine's docstring."""
    parsed = case(f"n=2 c=2 k=2 groups=2 hw={values // 2} rs={values // 4} pad={values // 8}", direction)
    graph, rng = parsed.graph(), np.random.default_rng(fresh_seed())
    inputs = {tensor.uid: real_values(rng, tensor.dims, tensor.data_type) for tensor in graph.inputs}
    plan = ENGINE.plan(graph, SM_90A, {KnobType.TILE_SIZE: values})
    (found,) = run_plan(device, plan, graph, inputs).values()
    error = np.sqrt(np.mean((found - exact_of(parsed, inputs)) ** 2))
    sizes = prod(np.sqrt(np.mean(array.astype(np.float64) ** 2)) for array in inputs.values())
    assert error < (log2(values) + 2) / 4 * 2.0**-23 * sizes * np.sqrt(parsed.length)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n=1 c=2 k=2 hw=9 rs=3 stride=2", "convolution.strides: expected 1 along every axis, got [2]"),
        ("n=1 c=2 k=2 hw=9 rs=3 dtype=fp64", "data_type: expected one of BFLOAT16, HALF, FLOAT, got DOUBLE"),
        ("n=1 c=2 k=2 hw=9 rs=3 dtype=int8", "data_type: expected one of BFLOAT16, HALF, FLOAT, got INT8"),
        ("n=1 c=2 k=2 hw=9 rs=3 exits=sum", "expected ConvolutionOperation and pointwise operations, got"),
        ("n=0 c=2 k=2 hw=9 rs=3", "expected elements in every tensor, got none"),
    ],
)
def test_refusals_say_why(line: str, reason: str) -> None:
    assert reason in str(ENGINE.refuse(case(line).graph(), SM_90A))


def test_long_sequences_are_planned_on_every_device() -> None:
    """A filter of 2^20 taps, as long as the sequence, in windows for which each device has shared memory."""
    graph = case(f"n=1 c=4 k=4 groups=4 hw={1 << 20} rs={1 << 20} pad={(1 << 20) - 1}:0 layout=nchw").graph()
    for name, values in (("sm_80", 32768), ("sm_90a", 32768), ("sm_120", 16384)):
        arch = spec_named(name)
        plan = ENGINE.plan(graph, arch, {})
        assert dict(plan.choices) == {KnobType.TILE_SIZE: values}
        assert all(launch.shared_bytes <= arch.shared_bytes_per_block for launch in plan.launches)


@pytest.mark.parametrize(
    ("line", "is_faster"),
    [
        ("n=1 c=2048 k=2048 groups=2048 hw=16384 rs=16384 pad=16383:0 layout=nchw", True),
        ("n=32 c=384 k=384 groups=384 hw=56x56 rs=31x31 pad=15 dtype=fp16", True),
        ("n=32 c=64 k=64 hw=56x56 rs=3x3 pad=1 dtype=fp16", False),
        ("n=2 c=5 k=3 hw=8 rs=5", False),
    ],
)
def test_large_filters_have_it(line: str, is_faster: bool) -> None:
    candidates = rank(case(line).graph(), SM_90A, HeurMode.A, ENGINES).candidates
    (own,) = (candidate for candidate in candidates if candidate.engine.name == ENGINE.name)
    assert (own is candidates[0]) == is_faster
    assert NumericalNote.FFT in own.plan.numerical_notes


def test_exact_data_are_left_to_engines_with_exact_sums() -> None:
    """A run with data for exact sums gives this engine real ones."""
    request = Request(ENGINE.name, is_checked=False, is_exact=True, repeats=0, seed=fresh_seed())
    with Handle.open("emulated") as handle:
        (result,) = results(handle, case("n=1 c=1 k=1 hw=2000 rs=700 dtype=bf16"), request)
    assert result.status == "ok", result.detail
