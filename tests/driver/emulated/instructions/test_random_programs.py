"""Metamorphic tests: a random program gives each lane the same, whoever runs beside it and in whatever order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes, opened
from tests.driver.emulated.instructions.random_programs import REGISTERS, RandomProgram

LANES = 64
DTYPES = {"r": np.uint32, "f": np.float32, "d": np.float64, "l": np.uint64, "h": np.uint16, "p": bool}


def outputs() -> dict[str, type]:
    return {f"%{kind}{place}": DTYPES[kind] for kind, (_, count) in REGISTERS.items() for place in range(count)}


def lane_inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    words = rng.integers(0, 1 << 32, (2, LANES), dtype=np.uint64).astype(np.uint32)
    words[:, ::3] &= np.uint32(7)
    return {"%x0": words[0], "%x1": words[1], "%y": rng.normal(0, 3, LANES).astype(np.float32)}


@pytest.mark.parametrize("case", range(12))
def test_neighbours_and_order_do_not_matter(emulated_lanes: Lanes, rng: np.random.Generator, case: int) -> None:
    inputs = lane_inputs(rng)
    body = RandomProgram(rng).body(statements=60)
    together = emulated_lanes.execute(body, inputs, outputs())
    for policy in ("warp-serial(3)", "cta-reverse"):
        with opened("emulated", policy) as lanes:
            compare(lanes.execute(body, inputs, outputs()), together, body)
    for lane in rng.choice(LANES, 4, replace=False):
        alone = {name: values[lane : lane + 1] for name, values in inputs.items()}
        expected = [result[lane : lane + 1] for result in together]
        compare(emulated_lanes.execute(body, alone, outputs()), expected, body)
        compare(emulated_lanes.execute(body, alone, outputs(), uniform=list(alone)), expected, body)


@pytest.mark.gpu
@pytest.mark.parametrize("case", range(12))
def test_the_gpu_agrees(emulated_lanes: Lanes, rng: np.random.Generator, case: int) -> None:
    inputs = lane_inputs(rng)
    body = RandomProgram(rng, exact=True).body(statements=60)
    with opened("cuda") as lanes:
        results = lanes.execute_unoptimised(body, inputs, outputs())
    compare(results, emulated_lanes.execute(body, inputs, outputs()), body)


def compare(actual: list[np.ndarray], expected: list[np.ndarray], body: str) -> None:
    for name, one, other in zip(outputs(), actual, expected, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=f"{name} of\n{body}")
