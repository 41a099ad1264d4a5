"""The recorder keeps what it can: a case that does not load or faults costs that case only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.calibration.case import Case
from tests.calibration.lanewise import Step, lanewise
from tests.calibration.recording import record


def mixed_cases() -> Iterator[Case]:
    """Good ones around one that does not load and one that faults, which sticks to its context."""
    values = {"a": np.arange(4, dtype=np.uint32)}
    good = lanewise("first", values, [Step("double", "add.u32 %d, %a, %a;", "u32")])
    yield good
    yield replace(good, name="unknown", ptx=good.ptx.replace("add.u32", "bogus.u32"))
    yield lanewise("fault", values, [Step("load", "mov.b64 %base, 16;\nld.global.u32 %d, [%base];", "u32")])
    yield replace(good, name="last")


def test_a_broken_case_is_skipped_and_named() -> None:
    recording = record(mixed_cases, "emulated")
    assert set(recording.digests) == {"first", "last"}
    assert set(recording.skipped) == {"unknown", "fault"}
    assert "bogus" in recording.skipped["unknown"]
    assert "out-of-bounds" in recording.skipped["fault"]
    assert {name: values.tolist() for name, values in recording.results.items()} == {
        ("first", "double"): [0, 2, 4, 6],
        ("last", "double"): [0, 2, 4, 6],
    }
    assert recording.device == "lowdnn emulated sm_90a"
