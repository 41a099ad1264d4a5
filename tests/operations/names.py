"""The series that PromQL names."""

from __future__ import annotations

import re

from lowdnn.telemetry.measures import MEASURES, Kind

_NAME = re.compile(r"\b(?:lowdnn(?::\w+)+|lowdnn_\w+|DCGM_\w+)\b")
#: Texts and labels of an expression, which may look like names.
_QUOTED = re.compile(r'"[^"]*"')
_LABELS = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)|\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|=|!=|,|$)")

#: Labels that targets and Prometheus give.
TARGET_LABELS = frozenset({"pool", "host", "instance", "job", "alertname", "alertstate", "severity", "le"})


def names(expr: str) -> set[str]:
    """The series of lowdnn and of GPUs that an expression reads."""
    return set(_NAME.findall(_QUOTED.sub('""', expr)))


def labels(expr: str) -> set[str]:
    """The labels that an expression groups by or selects."""
    found = [" , ".join(groups) for groups in _LABELS.findall(_QUOTED.sub('""', expr))]
    return {label for text in found for label in re.findall(r"[A-Za-z_]\w*", text)}


def exported() -> set[str]:
    """The series that lowdnn's measures export."""
    return {
        f"{measure.name}{suffix}"
        for measure in MEASURES
        for suffix in (("_bucket", "_sum", "_count") if measure.kind is Kind.HISTOGRAM else ("",))
    }


def recorded(rules: str) -> set[str]:
    """The series that recording rules write."""
    return set(re.findall(r"- record: (\S+)", rules))
