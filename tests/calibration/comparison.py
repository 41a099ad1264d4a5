"""Compares what a device gives with a recording, as each output's bound allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lowdnn.driver.base import Driver, DriverError
from tests.calibration.case import Array, Case, Output
from tests.calibration.running import execute
from tests.calibration.store import Recording

_FRACTION_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}


@dataclass(frozen=True)
class Verdict:
    """One output of one case: how many values equal the recording, lie within the bound, or are wrong.

    ``detail`` describes the first wrong value, or why the case did not run; ``worst`` is the largest part of its bound
    that a value uses.
    """

    case: str
    label: str
    exact: int
    within: int
    wrong: int
    worst: float = 0.0
    detail: str = ""


def compare(case: Case, recording: Recording, driver: Driver) -> Iterator[Verdict]:
    """A verdict for each output of ``case`` as ``driver`` runs it. Cases that were not recorded give none."""
    if case.name in recording.skipped:
        return
    if recording.digests.get(case.name) != case.digest():
        yield _failed(case, "not recorded, or recorded for another version of the case: record again")
        return
    try:
        actual = execute(case, driver)
        magnitudes = None if case.magnitudes is None else execute(case, driver, case.magnitudes)
    except DriverError as error:
        yield _failed(case, error.explanation or str(error))
        return
    for place, output in enumerate(case.outputs):
        expected = recording.results[case.name, output.label]
        magnitude = None if magnitudes is None else magnitudes[place]
        yield _verdict(case, output, actual[place], expected, magnitude)


def _failed(case: Case, detail: str) -> Verdict:
    return Verdict(case.name, "", 0, 0, sum(output.count for output in case.outputs), detail=detail)


def _verdict(case: Case, output: Output, actual: Array, expected: Array, magnitude: Array | None) -> Verdict:
    actual, expected = _elements(actual, output), _elements(expected, output)
    same = actual == expected
    if output.kind[0] != "u":
        same |= _is_nan(actual, output.kind) & _is_nan(expected, output.kind)
    exact = int(np.count_nonzero(same))
    if exact == same.size:
        return Verdict(case.name, output.label, exact, 0, 0)
    used = np.where(same, 0.0, np.inf)
    if not output.bound.is_exact:
        part = _used(output, actual, expected, None if magnitude is None else _elements(magnitude, output))
        used = np.where(same, 0.0, part)
    wrong = ~(used <= 1)
    count = int(np.count_nonzero(wrong))
    detail = ""
    if count:
        first = int(np.argmax(wrong))
        detail = f"element {first}: {int(expected[first]):#x} on the GPU, {int(actual[first]):#x} here"
    return Verdict(case.name, output.label, exact, same.size - exact - count, count, float(used.max()), detail)


def _elements(values: Array, output: Output) -> Array:
    """Single elements: those of f16x2 and bf16x2 one after the other."""
    return values.view(np.uint16) if output.kind.endswith("x2") else values


def _used(output: Output, actual: Array, expected: Array, magnitude: Array | None) -> Array:
    """|actual - expected| as a part of what the bound allows; infinite where one of them alone is no finite number."""
    kind, bound = output.kind.removesuffix("x2"), output.bound
    one, other = _numbers(actual, kind), _numbers(expected, kind)
    size = 0.0 if magnitude is None else np.abs(_numbers(magnitude, kind))
    with np.errstate(invalid="ignore", divide="ignore"):
        allowed = bound.absolute + bound.relative * np.abs(other) + bound.of_magnitude * size
        part = np.abs(one - other) / allowed
    return np.where(np.isfinite(one) & np.isfinite(other), part, np.inf)


def _numbers(bits: Array, kind: str) -> Array:
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.view(f"f{bits.itemsize}").astype(np.float64)


def _is_nan(bits: Array, kind: str) -> Array:
    width = 8 * bits.itemsize
    infinity = ((1 << width) - 1 >> 1) ^ ((1 << _FRACTION_BITS[kind.removesuffix("x2")]) - 1)
    return (bits & bits.dtype.type((1 << width) - 1 >> 1)) > bits.dtype.type(infinity)
