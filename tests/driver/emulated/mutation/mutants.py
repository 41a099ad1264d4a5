"""The table of mutants, ``mutants.txt``, and the mutants themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lowdnn.driver.base import LaunchConfig
from tests.driver.emulated.mutation.edits import edited, edits_of, sites
from tests.driver.emulated.mutation.programs import PROGRAMS, Program

_TABLE = Path(__file__).with_name("mutants.txt")
_EQUIVALENT = "equivalent"
_LAUNCH = "launch"


@dataclass(frozen=True)
class Mutant:
    """One row of the table. ``kinds``: the reports that tell of it (``FaultKind.text``); none where it is still right.

    ``site`` is that of an instruction, or ``launch`` for a change of the launch configuration; several sites, joined by
    `` + ``, are edited together.
    """

    program: Program
    site: str
    edit: str
    kinds: frozenset[str]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.program.name, self.site, self.edit

    @property
    def is_equivalent(self) -> bool:
        return not self.kinds

    def ptx(self) -> str:
        ptx = self.program.ptx()
        if self.site == _LAUNCH:
            return ptx
        instructions = sites(ptx)
        for site in self.site.split(" + "):
            (edit,) = (edit for edit in edits_of(instructions[site]) if edit.name == self.edit)
            ptx = edited(ptx, site, edit)
        return ptx

    def change(self, config: LaunchConfig) -> LaunchConfig:
        return _CHANGES[self.edit](config) if self.site == _LAUNCH else config

    def __str__(self) -> str:
        return ": ".join(self.key)


def mutants() -> list[Mutant]:
    """All rows of the table."""
    lines = (line.strip() for line in _TABLE.read_text().splitlines())
    return [_parsed(line) for line in lines if line and not line.startswith("#")]


def possible_mutants(program: Program) -> set[tuple[str, str, str]]:
    """(program, site, edit) of every edit that an instruction with a site can suffer."""
    return {
        (program.name, site, edit.name)
        for site, instruction in sites(program.ptx()).items()
        for edit in edits_of(instruction)
    }


def _parsed(line: str) -> Mutant:
    program, site, edit, kinds = (word.strip() for word in line.split("|"))
    names = [] if kinds == _EQUIVALENT else [word.strip() for word in kinds.split(",")]
    return Mutant(PROGRAMS[program], site, edit, frozenset(names))


def _one_block_more(config: LaunchConfig) -> LaunchConfig:
    x, y, z = config.grid
    return replace(config, grid=(x + config.cluster[0], y, z))


def _less_shared(config: LaunchConfig) -> LaunchConfig:
    return replace(config, shared_bytes=config.shared_bytes - 16)


_CHANGES: dict[str, Callable[[LaunchConfig], LaunchConfig]] = {
    "one block more": _one_block_more,
    "16 bytes of shared memory fewer": _less_shared,
}
