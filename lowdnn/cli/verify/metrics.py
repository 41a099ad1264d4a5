"""The verdicts of ``lowdnn verify`` in Prometheus' text format, for the textfile collector of node_exporter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowdnn.cli.reading import short_text
from lowdnn.runtime.cache_files import write
from lowdnn.runtime.shared_files import check_place, place_of
from lowdnn.status import BadParamError, LowdnnError
from lowdnn.telemetry.measures import VERIFY_FAILURES, VERIFY_LARGEST_ERROR, Measure


@dataclass(frozen=True)
class CaseVerdict:
    """A case over all devices. failures: how often it failed.  share: its largest error; None where nothing ran."""

    case: str
    failures: int
    share: float | None


def metrics_text(verdicts: Sequence[CaseVerdict]) -> str:
    """The measures of the canary; a case has one sample of each, of which it lacks the error where nothing ran."""
    labels = _labels(verdict.case for verdict in verdicts)
    failures = [(label, float(verdict.failures)) for label, verdict in zip(labels, verdicts, strict=True)]
    errors = [
        (label, verdict.share) for label, verdict in zip(labels, verdicts, strict=True) if verdict.share is not None
    ]
    return "".join(_family(VERIFY_FAILURES, failures)) + "".join(_family(VERIFY_LARGEST_ERROR, errors))


def check_metrics_place(path: str) -> None:
    """Raises BadParamError where ``write_metrics`` would."""
    try:
        check_place(Path(path))
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def write_metrics(path: str, verdicts: Sequence[CaseVerdict]) -> None:
    """Writes the file, whole or not at all, readable for other users. Raises BadParamError where that does not go."""
    try:
        with place_of(Path(path)) as folder:
            write(folder, Path(path).name, metrics_text(verdicts).encode(), mode=0o644)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str, error: Exception) -> LowdnnError:
    return BadParamError.at("verify.metrics", expected="a file that can be written", got=f"{path}: {error}")


def _labels(cases: Iterable[str]) -> list[str]:
    """Short texts of cases, no two of which are the same."""
    found: list[str] = []
    for case in cases:
        label, number = short_text(case), 2
        while label in found:
            label, number = f"{short_text(case)} ({number})", number + 1
        found.append(label)
    return found


def _family(measure: Measure, samples: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP {measure.name} {measure.help}\n# TYPE {measure.name} {measure.kind}\n"
    (label,) = measure.labels
    for value, number in samples:
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        yield f'{measure.name}{{{label}="{escaped}"}} {_number(number)}\n'


def _number(value: float) -> str:
    """A number as the format has it: ``+Inf`` for an infinite one."""
    return "+Inf" if value == float("inf") else repr(value)
