"""From a graph to a case with that graph: a program's request as a line of text."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

from lowdnn.cases import case_families
from lowdnn.cases.base import Case
from lowdnn.cases.families.any_graph import GraphCase
from lowdnn.graph.graph import OperationGraph
from lowdnn.status import LowdnnError


def case_of(graph: OperationGraph) -> Case:
    """A case with a graph of the same key: in the words of its family where one has them, otherwise a ``graph``.

    Raises BadParamError for a graph that is too large for a document.
    """
    for family in case_families().values():
        for guess in family.guesses(graph):
            if _has(guess, graph):
                return _shortened(guess, graph)
    return GraphCase.of(graph)


def _has(case: Case, graph: OperationGraph) -> bool:
    try:
        return case.graph().key == graph.key
    except LowdnnError:  # a guess whose values do not fit together
        return False


def _shortened(case: Case, graph: OperationGraph) -> Case:
    """An equal case with a shorter text: keys get their default if the graph stays equal, and one value replaces equal
    values of all axes."""
    for item in fields(case):  # type: ignore[arg-type]
        if item.default is MISSING:
            continue
        value = getattr(case, item.name)
        is_even = isinstance(value, tuple) and len(set(value)) == 1
        for simpler in (item.default, *([value[:1]] if is_even else [])):
            shorter = case if simpler == value else replace(case, **{item.name: simpler})  # type: ignore[type-var]
            if _has(shorter, graph):
                case = shorter
                break
    return case
