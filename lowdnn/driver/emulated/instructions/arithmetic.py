"""Opcodes that integers and floats share; each goes to its family by the instruction's type."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Modifiers, Row
from lowdnn.driver.emulated.instructions import floating, half, integer
from lowdnn.driver.emulated.parsing.ir import Instruction

FLOATS = ("f32", "f64")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")


def kind_of(instruction: Instruction) -> str:
    """The last type among the modifiers."""
    return Modifiers(instruction).left[-1] if instruction.modifiers else ""


def _emit(e: Emitter, instruction: Instruction) -> None:
    kind = kind_of(instruction)
    family = floating if kind in FLOATS else half if kind in HALVES else integer
    emitter = family.EMITTERS.get(instruction.opcode)
    if emitter is None:
        raise e.refuse(f"not for .{kind}")
    emitter(e)


_OPCODES = ("add", "sub", "mul", "mad", "fma", "div", "rem", "abs", "neg", "min", "max")

TABLE: dict[str, Row] = {opcode: Row(_emit) for opcode in _OPCODES}
