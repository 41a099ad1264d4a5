"""Which devices have an instruction. PTX ISA manual, "Target ISA Notes" of each instruction.

PTX for an older target is refused where it uses what that target lacks, as an assembler would.
"""

from __future__ import annotations

import re
from functools import lru_cache

from lowdnn.driver.emulated.faults import unsupported
from lowdnn.driver.emulated.parsing.ir import FunctionIR, Operand, Special

#: Opcodes of sm_90a alone.
_ONLY_90A = frozenset({"wgmma"})
#: Opcodes of targets with a suffix, from sm_90a on.
_FROM_90A = frozenset({"setmaxnreg", "tensormap"})
#: Opcodes of sm_90 and newer.
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
    match = re.fullmatch(r"sm_(\d+)([af]?)", target)
    number, suffix = (int(match[1]), match[2]) if match else (0, "")
    for instruction in function.body:
        first, first_suffix = _first_target(instruction.opcode, instruction.modifiers)
        if first < 90 and any(map(_is_of_clusters, instruction.operands)):
            first = 90
        is_missing = number < first or (bool(first_suffix) and not suffix)
        if is_missing or (instruction.opcode in _ONLY_90A and target != "sm_90a"):
            raise unsupported(f"{instruction.name} takes sm_{first}{first_suffix}, not {target}", instruction.line)


def _is_of_clusters(operand: Operand) -> bool:
    return isinstance(operand, Special) and operand.name.startswith(_CLUSTER_REGISTERS)


@lru_cache(maxsize=1 << 12)
def _first_target(opcode: str, modifiers: tuple[str, ...]) -> tuple[int, str]:
    if opcode in _ONLY_90A or opcode in _FROM_90A:
        return 90, "a"
    forms = _FORMS_FROM_90.get(opcode)
    if (
        opcode in _FROM_90
        or not _MODIFIERS_FROM_90.isdisjoint(modifiers)
        or (forms is not None and not forms.isdisjoint(modifiers))
    ):
        return 90, ""
    return (89, "") if opcode == "cvt" and not _FP8.isdisjoint(modifiers) else (0, "")
