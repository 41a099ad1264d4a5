"""Filters over the execution plans of a pygraph: by name, workspace, and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Self

from lowdnn.enums import BehaviorNote, NumericalNote
from lowdnn.frontend.arguments import integer, members
from lowdnn.frontend.enums import behavior_note, numerical_note
from lowdnn.plan import Plan
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import AttributeTypeError


class FilterMethods:
    """Methods of pygraph that leave out plans of its list."""

    def deselect_engines(self, engine_names: Sequence[str]) -> Self:
        """Leaves out plans whose name contains one of ``engine_names``."""
        names = engine_names
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise AttributeTypeError.at("deselect_engines.engine_names", expected="a list of strings", got=repr(names))
        return self._filter(lambda plan: next((f"deselected by name {n!r}" for n in names if n in plan.name), ""))

    def deselect_workspace_greater_than(self, workspace_limit: int) -> Self:
        """Leaves out plans that need more bytes of workspace."""
        limit = integer(workspace_limit, "deselect_workspace_greater_than.workspace_limit")
        return self._filter(lambda plan: _over(limit, size_anywhere(plan.workspace_bytes)))

    def deselect_numeric_notes(self, notes: Sequence[numerical_note]) -> Self:
        """Leaves out plans with any of these notes."""
        barred = {NumericalNote[note.name] for note in members(numerical_note, notes, "deselect_numeric_notes.notes")}
        return self._filter(lambda plan: _with_note(barred & set(plan.numerical_notes)))

    def select_numeric_notes(self, notes: Sequence[numerical_note]) -> Self:
        """Leaves out plans that do not have all of these notes."""
        wanted = {NumericalNote[note.name] for note in members(numerical_note, notes, "select_numeric_notes.notes")}
        return self._filter(lambda plan: _without_note(wanted - set(plan.numerical_notes)))

    def deselect_behavior_notes(self, notes: Sequence[behavior_note]) -> Self:
        """Leaves out plans with any of these notes."""
        barred = {BehaviorNote[note.name] for note in members(behavior_note, notes, "deselect_behavior_notes.notes")}
        return self._filter(lambda plan: _with_note(barred & set(plan.behavior_notes)))

    def select_behavior_notes(self, notes: Sequence[behavior_note]) -> Self:
        """Leaves out plans that do not have all of these notes."""
        wanted = {BehaviorNote[note.name] for note in members(behavior_note, notes, "select_behavior_notes.notes")}
        return self._filter(lambda plan: _without_note(wanted - set(plan.behavior_notes)))

    def _filter(self, check: Callable[[Plan], str]) -> Self:
        """Leaves out the plans for which ``check`` gives a reason."""
        raise NotImplementedError


def _over(limit_bytes: int, size_bytes: int) -> str:
    return f"needs {size_bytes} bytes of workspace, the limit is {limit_bytes}" if size_bytes > limit_bytes else ""


def _with_note(notes: Iterable[IntEnum]) -> str:
    return next((f"deselected by note {note.name}" for note in sorted(notes)), "")


def _without_note(notes: Iterable[IntEnum]) -> str:
    return next((f"lacks the selected note {note.name}" for note in sorted(notes)), "")
