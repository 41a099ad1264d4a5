"""Extents near what 32-bit numbers count: an engine refuses them, or its plan obeys the rules of stored plans.

The rules (``runtime/plan_rules.py``) say that grids and 32-bit arguments are in range. Nothing is run.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.registry import ENGINES
from lowdnn.runtime.plan_rules import check_plan
from lowdnn.status import BadParamError, LowdnnError
from tests.support.data import fresh_seed

_LINES = 60
#: How the names of the engines begin that are looked at.
_ENGINES = (
    "conv_fft",
    "conv_winograd",
    "b2b_causal_conv1d",
    "causal_conv1d",
    "conv_implicit_gemm_mma_tf32x3",
    "matmul_mma_tf32x3",
    "matmul_wgmma_tf32x3",
)
#: Bytes that no device has: tensors are smaller.
_MEMORY_BYTES = 1 << 40
_MARGINS = (-100, -1, 0, 1, 7)


def check(line: str, random: Random) -> int:
    """Plans the case with default knobs, and with a random value of each knob. Returns the number of plans."""
    graph, count = parse_case(line).graph(), 0
    for arch in (SM_80, SM_90A):
        for engine in anchored(ENGINES, graph.operations):
            if not engine.name.startswith(_ENGINES) or engine.refuse(graph, arch) is not None:
                continue
            check_plan(engine.plan(graph, arch, {}))
            count += 1
            for knob in engine.knobs(graph, arch):
                choices = {knob.type: random.choice(knob.values)}
                plan = None
                with suppress(BadParamError):  # the other knobs' defaults may exclude the value
                    plan = engine.plan(graph, arch, choices)
                if plan is not None:
                    check_plan(plan)
    return count


@pytest.mark.parametrize(
    "line",
    [
        "causal_conv1d b=1 c=536870912 l=4 k=300 dir=bwd",
        "causal_conv1d b=8 c=65536 l=0 k=500000 dir=bwd",
        "causal_conv1d b=268435456 c=1000 l=0 k=4 states=both",
        "conv n=65536 c=2 k=1 hw=2097152 rs=64 dtype=fp16",
        "conv n=3 c=1 k=1 hw=2147483649x2 rs=3x3 pad=1 dir=dgrad",
        "conv n=1 c=1 k=1 hw=8x2 rs=3x3 pad=1073741824x1 dir=wgrad",
    ],
)
def test_extents_that_were_too_many(line: str) -> None:
    check(line, Random(1))


def test_random_extents() -> None:
    seed = fresh_seed()
    random, plans = Random(seed), 0
    for _ in range(_LINES):
        line = _line(random)
        try:
            plans += check(line, random)
        except LowdnnError as error:
            raise AssertionError(f"seed {seed}: {line}") from error
    assert plans > _LINES


def _line(random: Random) -> str:
    """A case whose tensors a device may have room for."""
    while True:
        line = random.choice((_convolution, _convolution, _matmul, _causal_convolution, _gated_convolution))(random)
        with suppress(LowdnnError):
            if all(tensor.span_bytes < _MEMORY_BYTES for tensor in parse_case(line).graph().tensors.values()):
                return line


def _extent(random: Random) -> int:
    """Mostly small, so that products of extents are near the limits too."""
    if random.random() < 0.6:
        return random.choice((1, 2, 3, 5, 8, 100, 1000, 1 << 14, 1 << 16))
    return (1 << random.choice((16, 20, 24, 28, 29, 30, 31, 32, 33))) + random.choice(_MARGINS)


def _convolution(random: Random) -> str:
    extents = [_extent(random) for _ in range(random.choice((1, 2, 2, 3)))]
    taps = [random.choice((1, 3, 3, min(extent, _extent(random)))) for extent in extents]
    pads = [random.choice((0, 1, _extent(random))) for _ in extents]
    groups = random.choice((1, 1, _extent(random)))
    words = {
        "n": _extent(random),
        "c": groups * random.choice((1, 2, 64)),
        "k": groups * random.choice((1, 2, 64)),
        "groups": groups,
        "hw": "x".join(map(str, extents)),
        "rs": "x".join(map(str, taps)),
        "pad": "x".join(map(str, pads)),
        "dir": random.choice(("fprop", "dgrad", "wgrad")),
        "dtype": random.choice(("fp32", "fp16")),
        "layout": random.choice(("nchw", "nhwc")),
    }
    return "conv " + " ".join(f"{word}={value}" for word, value in words.items())


def _matmul(random: Random) -> str:
    batch, m, n, k = (_extent(random) for _ in range(4))
    return f"matmul b={batch} m={m} n={n} k={k} dtype={random.choice(('fp32', 'fp16'))}"


def _causal_convolution(random: Random) -> str:
    direction, states = random.choice((("fwd", "both"), ("bwd", "initial")))
    length, taps = random.choice((0, 1, _extent(random))), random.choice((2, 4, 9, 300, 70000, 1 << 30))
    layout = random.choice(("row", "nhwc"))
    words = f"b={_extent(random)} c={_extent(random)} l={length} k={taps}"
    return f"causal_conv1d {words} states={states} dir={direction} layout={layout}"


def _gated_convolution(random: Random) -> str:
    taps = f"proj={random.choice((1, 4, 300))} mixer={random.choice((2, 9, 300, 70000))}"
    words = f"b={_extent(random)} c={_extent(random)} l={random.choice((0, 1, _extent(random)))}"
    return (
        f"b2b_causal_conv1d {words} {taps} dir={random.choice(('fwd', 'bwd'))} layout={random.choice(('row', 'nhwc'))}"
    )
