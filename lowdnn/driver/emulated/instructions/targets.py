"""Which devices have an instruction. PTX ISA manual, "Target ISA Notes" of each instruction.

PTX for an older target is refused where it uses what that target has not, as an assembler would.
"""

from __future__ import annotations

import re

from lowdnn.driver.emulated.faults import unsupported
from lowdnn.driver.emulated.parsing.ir import FunctionIR, Instruction, Special

#: Opcodes that only sm_90a has, and those that sm_90 was the first to have.
_ONLY_90A = frozenset({"wgmma", "setmaxnreg", "tensormap"})
_FROM_90 = frozenset({"mapa", "getctarank", "griddepcontrol", "elect", "stmatrix"})
#: Modifiers that sm_90 was the first to have: with any opcode, and with one.
_MODIFIERS_FROM_90 = frozenset({"shared::cluster", "cluster"})
_FORMS_FROM_90 = {
    "cp": frozenset({"bulk", "reduce"}),
    "mbarrier": frozenset({"try_wait", "expect_tx", "complete_tx"}),
    "st": frozenset({"async"}),
    "red": frozenset({"async", "v2", "v4", "v8", "bf16", "bf16x2"}),
    "atom": frozenset({"v2", "v4", "v8", "bf16", "bf16x2", "b128"}),
    "fence": frozenset({"mbarrier_init", "async"}),
    "prefetch": frozenset({"tensormap"}),
    "add": frozenset({"bf16", "bf16x2", "u16x2", "s16x2"}),
    "sub": frozenset({"bf16", "bf16x2"}),
    "mul": frozenset({"bf16", "bf16x2"}),
    "min": frozenset({"u16x2", "s16x2"}),
    "max": frozenset({"u16x2", "s16x2"}),
}
_FP8 = frozenset({"e4m3x2", "e5m2x2"})
_CLUSTER_REGISTERS = ("%cluster", "%nclusterid", "%is_explicit_cluster", "%aggr_smem_size")


def check_target(function: FunctionIR, target: str) -> None:
    """Refuses the first instruction of a function that ``target`` (``sm_80``, ``sm_90a``) does not have."""
    have = _parts(target)
    for instruction in function.body:
        wanted = _first_target(instruction)
        if wanted > have:
            raise unsupported(f"{instruction.name} takes sm_{wanted[0]}{wanted[1]}, not {target}", instruction.line)


def _parts(target: str) -> tuple[int, str]:
    """(number, letter), which compare as the targets do."""
    match = re.fullmatch(r"sm_(\d+)([af]?)", target)
    return (int(match[1]), match[2]) if match else (0, "")


def _first_target(instruction: Instruction) -> tuple[int, str]:
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in _ONLY_90A:
        return 90, "a"
    forms = _FORMS_FROM_90.get(opcode)
    if (
        opcode in _FROM_90
        or not _MODIFIERS_FROM_90.isdisjoint(modifiers)
        or (forms is not None and not forms.isdisjoint(modifiers))
        or any(isinstance(o, Special) and o.name.startswith(_CLUSTER_REGISTERS) for o in instruction.operands)
    ):
        return 90, ""
    return (89, "") if opcode == "cvt" and not _FP8.isdisjoint(modifiers) else (0, "")
