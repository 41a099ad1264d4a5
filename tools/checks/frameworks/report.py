"""The verdict on a case, and its line in the table."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from tools.checks.frameworks.cases import parse
from tools.checks.frameworks.errors import ROUNDING, ratio

LIBRARIES = ("real", "own")


def worst(row: Mapping[str, Any]) -> float:
    """The largest multiple of the real library's errors: of loss, output and gradients, each taken together."""
    return max(_multiples(row, "errors", "spread").values())


def worst_one(row: Mapping[str, Any]) -> float:
    """The largest multiple of a single result's error."""
    return max(_multiples(row, "each", "each_spread").values())


def has_failed(row: Mapping[str, Any], most: float) -> bool:
    """Whether a library has no answer, or lowdnn's errors are more than ``most`` times the real library's."""
    if any("error" in row[name] for name in LIBRARIES):
        return True
    return all("errors" in row[name] for name in LIBRARIES) and not worst(row) <= most


def line_of(row: Mapping[str, Any], most: float) -> str:
    """The row as text: of each pair of numbers, the real library's comes first."""
    real, own = row["real"], row["own"]
    failed = [
        f"{name}: {row[name]['error']} | {row[name].get('last', '')}" for name in LIBRARIES if "error" in row[name]
    ]
    if failed:
        return f"FAIL {row['case']}\n     " + "\n     ".join(failed)
    if "errors" in real and "errors" in own:
        verdict = "FAIL" if has_failed(row, most) else "ok  "
        text = f"{worst(row):6.2f} of {max(own['errors'].values()):.1e}, {worst_one(row):.2f}"
        text += f"  first {real['first_s']:7.2f} {own['first_s']:7.2f} s"
    else:
        verdict, text = "-   ", "" if "step_ms" in own else f"{real} {own}"
    if "step_ms" in real and "step_ms" in own:
        text += f"  step {real['step_ms']:8.3f} {own['step_ms']:8.3f} ms ({own['step_ms'] / real['step_ms']:.2f})"
        text += f", host {real['host_ms']:.2f} {own['host_ms']:.2f} ms"
    passed_over = [f"\n     passed over: {message}" for message in own.get("failures", ())]
    return f"{verdict} {row['case']:76} {text}" + "".join(passed_over)


def _multiples(row: Mapping[str, Any], errors: str, spread: str) -> dict[str, float]:
    """The errors as multiples of the real library's.

    A recurrent network rounds its states at each step of each layer; such roundings add up with the root of their
    number.
    """
    real, own = row["real"], row["own"]
    case = parse(row["framework"], row["case"])
    least = ROUNDING[case.word("precision")] * sqrt(case.number("t", 1) * case.number("layers", 1))
    return {name: ratio(error, real[errors][name], real[spread][name], least) for name, error in own[errors].items()}
