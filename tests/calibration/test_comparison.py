"""The comparison finds what differs: a calibration that cannot fail shows nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowdnn.driver.base import Driver
from tests.calibration.case import EXACT, Bound, Case
from tests.calibration.comparison import Verdict, compare
from tests.calibration.lanewise import Step, lanewise
from tests.calibration.running import execute, opened
from tests.calibration.store import Recording, load, save

_SUM = "add.rn.f32 %d, %a, %b;"


@pytest.fixture
def driver() -> Iterator[Driver]:
    with opened("emulated") as opened_driver:
        yield opened_driver


def _case(bound: Bound = EXACT) -> Case:
    values = np.array([1.0, 2.0, np.nan, np.inf, -3.5], np.float32)
    inputs = {"a": values.view(np.uint32), "b": np.ones(5, np.float32).view(np.uint32)}
    return lanewise("sums", inputs, [Step("sum", _SUM, "f32", bound)])


def _recording(case: Case, sums: list[float]) -> Recording:
    results = {("sums", "sum"): np.array(sums, np.float32).view(np.uint32)}
    return Recording("a GPU", 13000, "2026-01-01", {case.name: case.digest()}, {}, results)


def _verdict(case: Case, sums: list[float], driver: Driver) -> Verdict:
    (verdict,) = compare(case, _recording(case, sums), driver)
    return verdict


def test_equal_values_and_any_nan_are_exact(driver: Driver) -> None:
    verdict = _verdict(_case(), [2.0, 3.0, -np.nan, np.inf, -2.5], driver)
    assert (verdict.exact, verdict.within, verdict.wrong) == (5, 0, 0)


def test_one_bit_is_wrong_where_the_rule_is_exact(driver: Driver) -> None:
    verdict = _verdict(_case(), [2.0, np.nextafter(np.float32(3), np.float32(4)), np.nan, np.inf, -2.5], driver)
    assert (verdict.exact, verdict.within, verdict.wrong) == (4, 0, 1)
    assert verdict.detail == "element 1: 0x40400001 on the GPU, 0x40400000 here"


@pytest.mark.parametrize(
    ("bound", "part"),
    [(Bound(absolute=0.5), 0.5), (Bound(relative=0.125), 0.25 / (0.125 * 3.25)), (Bound(absolute=0.2), 1.25)],
)
def test_bounds(driver: Driver, bound: Bound, part: float) -> None:
    verdict = _verdict(_case(bound), [2.0, 3.25, np.nan, np.inf, -2.5], driver)
    assert verdict.worst == pytest.approx(part)
    assert (verdict.within, verdict.wrong) == ((1, 0) if part <= 1 else (0, 1))


def test_no_bound_excuses_an_infinity_or_nan(driver: Driver) -> None:
    verdict = _verdict(_case(Bound(absolute=1e30)), [np.inf, 3.0, 0.0, 1.0, np.nan], driver)
    assert (verdict.exact, verdict.wrong) == (1, 4)


def test_a_bound_by_the_magnitude_of_the_terms(driver: Driver) -> None:
    case = _case(Bound(of_magnitude=2.0**-4))
    bare = tuple(values & np.uint32(0x7FFFFFFF) for values in case.inputs)
    verdict = _verdict(replace(case, magnitudes=bare), [2.0, 3.0, np.nan, np.inf, -2.5 - 0.25], driver)
    assert verdict.worst == pytest.approx(0.25 / (4.5 / 16))


def test_a_case_that_changed_or_does_not_load_is_wrong(driver: Driver) -> None:
    case = _case()
    other = replace(case, ptx=case.ptx.replace("add.rn", "sub.rn"))
    (verdict,) = compare(other, _recording(case, [0.0] * 5), driver)
    assert verdict.wrong == 5
    assert "record again" in verdict.detail
    broken = replace(case, ptx=case.ptx.replace("add.rn", "add.bogus"))
    (verdict,) = compare(broken, _recording(broken, [0.0] * 5), driver)
    assert verdict.wrong == 5
    assert "add.bogus" in verdict.detail


def test_a_recording_comes_back_from_its_file(driver: Driver, tmp_path: Path) -> None:
    case = _case()
    recording = replace(_recording(case, execute(case, driver)[0].view(np.float32).tolist()), skipped={"x": "faulted"})
    save(recording, tmp_path / "sums.npz.xz")
    back = load(tmp_path / "sums.npz.xz")
    assert (back.device, back.driver_version, back.date) == ("a GPU", 13000, "2026-01-01")
    assert (back.digests, back.skipped) == (recording.digests, recording.skipped)
    np.testing.assert_array_equal(back.results["sums", "sum"], recording.results["sums", "sum"])
