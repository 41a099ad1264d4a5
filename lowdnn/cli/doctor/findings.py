"""Findings of checks: a verdict, its reason, and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """OK, UNKNOWN (it could not be checked), WARNING (it works, worse than it should), FAILURE; from good to bad."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """The verdict of a check. remedy: empty where nothing is to be done."""

    check: str
    verdict: Verdict
    reason: str
    remedy: str = ""


def worst(findings: Iterable[Finding]) -> Verdict:
    """The worst verdict; OK where there is none."""
    order = list(Verdict)
    return max((finding.verdict for finding in findings), key=order.index, default=Verdict.OK)
