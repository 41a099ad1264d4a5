"""Files of saved outputs: what was written is read, and a file that is anything else is refused by name."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.cases import parse_case
from lowdnn.cases.compare import EXACT, differences, expected_outputs
from lowdnn.cli.case_results import Judged, Result
from lowdnn.cli.verify.baseline import read_baseline, saved_case, write_baseline
from lowdnn.status import LowdnnError
from tests.support.data import fresh_seed

CASES = (
    "matmul m=4 n=5 k=6 dtype=bf16",
    "pointwise dims=4x5 ops=add+store+mul dtype=fp32",
    "reduction dims=3x4 axes=1 op=add",
    "conv n=2 c=64 hw=9x9 k=24 rs=3x3 dtype=int8 epilogue=scale",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A baseline of the reference's outputs."""
    saved = []
    for text in CASES:
        case = parse_case(text)
        inputs = case.inputs(random.randrange(2**32), exact=False)
        expected = expected_outputs(case.graph(), inputs, (), case.length)
        outputs = {uid: wanted.values for uid, wanted in expected.items()}
        result = Result(text, "", "", "", "", "ok", 0.0, 0.0, 0, 0)
        saved.append(saved_case(case, Judged(result, inputs, expected, outputs)))
    write_baseline(str(tmp_path / "base.npz"), "a device", saved)
    return tmp_path / "base.npz"


def test_arrays_and_tolerances_come_back(file: Path) -> None:
    found = read_baseline(str(file))
    assert found.device == "a device"
    assert [str(each.case) for each in found.cases] == [str(parse_case(text)) for text in CASES]
    with np.load(file) as arrays:
        for number, saved in enumerate(found.cases):
            expected = expected_outputs(saved.case.graph(), saved.inputs, (), saved.case.length)
            for uid, values in saved.inputs.items():
                np.testing.assert_array_equal(values, arrays[f"{number}.inputs.{uid}"])
            for uid, wanted in saved.outputs.items():
                np.testing.assert_array_equal(wanted.values, expected[uid].values)
                of_two = expected[uid].allowed.of_two_results
                assert wanted.allowed == of_two
                assert (wanted.allowed.steps is None) == (of_two.steps is None) == (number != len(CASES) - 1)
                np.testing.assert_array_equal(wanted.allowed.steps, of_two.steps)


def test_results_that_are_right_on_either_side_are_no_drift() -> None:
    """Each has three quarters of the error that a comparison with the reference allows, and is rounded."""
    seed = fresh_seed()
    for text in CASES:
        case = parse_case(text)
        inputs = case.inputs(seed, exact=False)
        for uid, wanted in expected_outputs(case.graph(), inputs, (), case.length).items():
            data_type, size = case.graph().tensors[uid].data_type, wanted.values.shape
            values, places = dtypes.to_values(wanted.values, data_type).astype(np.float64), np.random.default_rng(seed)
            errors = 0.75 * wanted.allowed.limits(values) * places.choice([-1, 1], size)
            first, second = (dtypes.from_float64(values + sign * errors, data_type) for sign in (1, -1))
            assert not differences(first, wanted.values, data_type, wanted.allowed), f"seed {seed}, {text}"
            assert not differences(second, first, data_type, wanted.allowed.of_two_results), f"seed {seed}, {text}"
            if wanted.allowed != EXACT:
                assert differences(second, first, data_type, wanted.allowed), f"seed {seed}, {text}"


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _npy(array: Any, **options: bool) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(array), **options)
    return content.getvalue()


def _head(shape: str) -> bytes:
    """An array of a head alone, which says ``shape``."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _with(**other: Any) -> Callable[[dict[str, bytes]], None]:
    """Changes fields of the document."""

    def change(entries: dict[str, bytes]) -> None:
        entries["baseline.json"] = _text(json.loads(entries["baseline.json"]) | other)

    return change


def _without(name: str) -> Callable[[dict[str, bytes]], None]:
    return lambda entries: entries.__delitem__(name)


def _entry(name: str, content: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda entries: entries.__setitem__(name, content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("baseline.json"), "expected an entry baseline.json"),
        (_without("1.outputs.5.npy"), "expected an entry 1.outputs.5.npy"),
        (_entry("0.inputs.1.npy", _npy(np.zeros((4, 7), np.uint16))), r"0.inputs.1.npy: expected uint16 (4, 6)"),
        (
            _entry("0.inputs.1.npy", _npy(np.zeros((4, 6), np.int16))),
            "expected uint16 (4, 6) in C order, got int16",
        ),
        (_entry("0.inputs.1.npy", _npy([None], allow_pickle=True)), "expected uint16 (4, 6)"),
        (_entry("0.inputs.1.npy", _head("(1 << 60,)")), "expected a file of saved outputs"),
        (_entry("0.inputs.1.npy", _head(str((2**60,)))), "expected uint16 (4, 6)"),
        (_entry("0.inputs.1.npy", bytes(1 << 20)), "expected at most"),
        (_entry("0.inputs.1.npy", b""), "expected a file of saved outputs"),
        (_with(cases=[]), "expected 1 to 10000 cases"),
        (_with(cases=[1]), "cases[0]: expected a case and its tolerances"),
        (_with(cases=[{"case": "fold n=1", "tolerances": []}]), "cases[0]: case: expected a line"),
        (_with(cases=[{"case": CASES[0], "tolerances": []}]), "cases[0].tolerances: expected (uid, relative"),
        (_with(cases=[{"case": CASES[0], "tolerances": [[3, -1, 0]]}]), "cases[0].tolerances: expected (uid, relative"),
        (
            _with(cases=[{"case": "matmul m=99999999 n=99999999 k=1", "tolerances": [[3, 0, 0]]}]),
            "the memory of the host",
        ),
        (_entry("0.steps.3.npy", _npy(np.full((4, 5), np.nan))), "cases[0].steps.3: expected numbers of 0 or more"),
        (_entry("0.steps.3.npy", _npy(np.zeros((4, 5), np.float32))), "0.steps.3.npy: expected float64 (4, 5)"),
        (_with(lowdnn_baseline=2), "lowdnn_baseline: expected 1"),
        (_with(more=2), "expected the fields lowdnn, device, cases"),
    ],
)
def test_other_content_is_refused(change: Callable[[dict[str, bytes]], None], message: str, file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(LowdnnError) as told:
        read_baseline(str(file))
    assert message in str(told.value)
    assert str(told.value).count("\n") == 0


def test_random_damage_is_refused_or_changes_nothing(file: Path) -> None:
    """A byte is changed, or the file is cut: lowdnn's own error says so, or the arrays are those that were written."""
    whole, seed = file.read_bytes(), random.randrange(2**32)
    rng, refused = random.Random(seed), 0
    before = read_baseline(str(file)).cases
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(bytes(data[: rng.randrange(len(data))]) if rng.random() < 0.2 else bytes(data))
        try:
            after = read_baseline(str(file)).cases
        except LowdnnError:
            refused += 1
            continue
        for old, new in zip(before, after, strict=True):
            assert str(old.case) == str(new.case), seed
            for uid, values in old.inputs.items():
                np.testing.assert_array_equal(values, new.inputs[uid], err_msg=str(seed))
    assert refused > 50, seed


def test_no_regular_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("\0")):
        with pytest.raises(LowdnnError, match="expected a"):
            read_baseline(str(path))
