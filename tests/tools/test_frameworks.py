"""The comparison of two libraries under frameworks: its cases, its measure of errors, and its verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tools.checks.frameworks.cases import parse, table
from tools.checks.frameworks.errors import ROUNDING, distances, overall
from tools.checks.frameworks.report import has_failed, line_of, worst, worst_one


def test_every_case_of_the_table_says_its_precision() -> None:
    cases = table()
    assert {case.framework for case in cases} == {"pytorch", "jax"}
    assert {case.word("precision") for case in cases} <= {*ROUNDING}
    assert len({(case.framework, case.text) for case in cases}) == len(cases)


def test_shapes_of_a_convolution() -> None:
    plain = parse("pytorch", "conv n=2 c=8 k=6 size=9 r=3 groups=2 dims=3")
    assert plain.image() == ((2, 8, 9, 9, 9), (6, 4, 3, 3, 3))
    assert parse("pytorch", "conv n=2 c=8 k=6 size=9 r=3 groups=2 transposed=1").image()[1] == (8, 3, 3, 3)


def test_distances() -> None:
    reference = {"output": np.array([3.0, 4.0]), "gradient:w": np.array([1e-9])}
    found = {"output": np.array([3.0, 4.5]), "gradient:w": np.array([2e-9])}
    each = distances(found, reference)
    assert each["output"] == pytest.approx(0.1)
    assert each["gradient:w"] == pytest.approx(1e-9 / 5e-4)
    assert overall(found, reference) == pytest.approx(0.1)
    assert distances({**found, "output": np.array([np.nan, 0.0])}, reference)["output"] == np.inf


_CONVOLUTION = "conv n=1 c=1 k=1 size=5 r=1 precision=fp16"


def row(own: float, real: float, spread: float, text: str = _CONVOLUTION) -> dict[str, Any]:
    answer = {"errors": {"output": real}, "spread": {"output": spread}, "each": {"output": real}}
    answer |= {"each_spread": {"output": spread}, "first_s": 1.0}
    other = {**answer, "errors": {"output": own}, "each": {"output": own}}
    return {"framework": "pytorch", "case": text, "real": answer, "own": other}


@pytest.mark.parametrize(
    ("own", "real", "spread", "multiple"),
    [(4e-3, 1e-3, 0.0, 4.0), (4e-3, 1e-3, 4e-3, 1.0), (2.0**-12, 1e-9, 0.0, 0.5), (np.inf, 1.0, 0.0, np.inf)],
)
def test_verdicts(own: float, real: float, spread: float, multiple: float) -> None:
    found = row(own, real, spread)
    assert worst(found) == worst_one(found) == pytest.approx(multiple)
    assert has_failed(found, 2.0) == (multiple > 2)
    assert line_of(found, 2.0).startswith("ok" if multiple <= 2 else "FAIL")
    found["own"] = {"error": "out of memory"}
    assert has_failed(found, 2.0)
    assert line_of(found, 2.0).startswith("FAIL")


def test_roundings_of_a_recurrent_network_add_up() -> None:
    found = row(2.0**-9, 1e-9, 0.0, "lstm t=8 b=1 i=4 h=4 layers=2 precision=fp16")
    assert worst(found) == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("more", ["", "lengths=2x5x1", "lengths=5x3x3 batch_first=1 proj=3"])
def test_a_recurrent_network_gives_what_it_computes_for_each_sequence(more: str) -> None:
    """y past the end of a sequence is 0; h and c are those of its last step."""
    torch: Any = pytest.importorskip("torch", reason="the networks are torch's")
    from tools.checks.frameworks.recurrent import recurrent

    case = parse("pytorch", f"lstm t=5 b=3 i=4 h=6 layers=2 {more}")
    torch.manual_seed(3)
    module, (x, h, c) = recurrent(case)
    lengths = [int(length) for length in case.word("lengths", "5x5x5").split("x")]
    axis, rows, ends = int(not case.number("batch_first")), [], []
    for number, length in enumerate(lengths):
        alone = x.select(axis, number).unsqueeze(axis).narrow(1 - axis, 0, length)
        y, last = module.network(alone, (h[:, [number]], c[:, [number]]))
        rows.append(torch.nn.functional.pad(y.squeeze(axis), (0, 0, 0, 5 - length)))
        ends.append(last)
    wanted = [torch.stack(rows, axis), *(torch.cat(end, 1) for end in zip(*ends, strict=True))]
    torch.testing.assert_close(module(x, h, c), torch.cat([tensor.flatten() for tensor in wanted]))
