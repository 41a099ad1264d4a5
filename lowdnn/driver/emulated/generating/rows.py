"""Rows of the instruction table, and how an emitter takes an instruction's modifiers apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from lowdnn.driver.emulated.faults import RefusedPtx, unsupported
from lowdnn.driver.emulated.parsing.ir import TYPES, Instruction

if TYPE_CHECKING:
    from lowdnn.driver.emulated.generating.generator import Emitter


class Effect(Enum):
    """How an instruction takes part in control flow.

    VALUE: a pure function of registers; under a guard it becomes a select. ACTION: touches memory or shared state;
    under a guard it becomes a branch around it. WARP: needs the lanes of its member mask together. END: ends a block.
    """

    VALUE = auto()
    ACTION = auto()
    WARP = auto()
    END = auto()


@dataclass(frozen=True)
class Row:
    """One opcode. ``destinations``: how many leading operands it writes. ``mask``: operand index of the member mask of
    a WARP instruction, None where the whole warp must take part. ``accumulates``: it also reads its destinations."""

    emit: Callable[[Emitter, Instruction], None]
    effect: Effect = Effect.VALUE
    destinations: int = 1
    mask: int | None = None
    accumulates: bool = False


class Modifiers:
    """The dot-separated parts after an opcode. ``done`` refuses modifiers that the emitter did not take."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.left = list(instruction.modifiers)

    def flag(self, name: str) -> bool:
        """Takes the modifier ``name`` if the instruction has it; returns whether it does."""
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def choice(self, *names: str, default: str = "") -> str:
        """Takes the first of the modifiers ``names`` that the instruction has."""
        for name in self.left:
            if name in names:
                self.left.remove(name)
                return name
        return default

    def need(self, *names: str) -> str:
        """As ``choice``, but refuses the instruction if it has none of them."""
        found = self.choice(*names)
        if not found:
            raise self.refusal(f"needs one of .{', .'.join(names)}")
        return found

    def type(self, *allowed: str) -> str:
        """Takes the next PTX type, one of ``allowed`` where given."""
        for name in self.left:
            if name in TYPES and (not allowed or name in allowed):
                self.left.remove(name)
                return name
        raise self.refusal("has a type that is not supported")

    def done(self) -> None:
        if self.left:
            raise self.refusal(f"has modifiers that are not supported here: .{', .'.join(self.left)}")

    def refusal(self, why: str) -> RefusedPtx:
        return unsupported(f"{self.instruction.name} {why}", self.instruction.line)


def code_of(ptx_type: str) -> str:
    """Value code of a PTX type."""
    return TYPES[ptx_type][0]


def signed(ptx_type: str) -> bool:
    return ptx_type[0] == "s"
