"""Traits of a kernel's instructions that decide how its accesses are followed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowdnn.driver.emulated.parsing.ir import TYPES, Imm, Instruction

_LARGEST_SHIFT = 4
_MBARRIER_SHIFT = 3
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_SHARED_ONLY = frozenset({"shared", "shared::cta", "shared::cluster"})
_OTHER_SPACES = frozenset({"local", "param", "param::entry", "param::func"})
_ATOMICS = frozenset({"atom", "red"})


@dataclass(frozen=True)
class Traits:
    """``shared_shift`` and ``global_shift``: the smallest access to each memory takes ``1 << shift`` bytes.

    ``orders_memory``: it has fences or accesses with acquire or release, by which warps of different CTAs can
    synchronise. ``asynchronous``: it has mbarriers or work of the async proxy.
    """

    shared_shift: int
    global_shift: int
    orders_memory: bool
    asynchronous: bool


def traits_of(instructions: Iterable[Instruction]) -> Traits:
    """Reads the instructions of a kernel, each form once. The operands of ``cp`` alone say how much it moves."""
    forms = {(i.opcode, i.modifiers, i.operands if i.opcode == "cp" else ()): i for i in instructions}
    body = forms.values()
    return Traits(
        min((_shift(i) for i in body if _touches_shared(i)), default=_LARGEST_SHIFT),
        min((_shift(i) for i in body if _touches_global(i)), default=_LARGEST_SHIFT),
        any(_orders(i) for i in body),
        any(_is_asynchronous(i) for i in body),
    )


def _shift(instruction: Instruction) -> int:
    """log2 of the bytes that one lane accesses at a time, at most 16 of them."""
    modifiers = instruction.modifiers
    if instruction.opcode == "mbarrier":
        return _MBARRIER_SHIFT
    if instruction.opcode == "cp":
        sizes: Iterable[int] = (o.value for o in instruction.operands if isinstance(o, Imm) and o.value in (4, 8))
        return min((size.bit_length() - 1 for size in sizes), default=_LARGEST_SHIFT)
    element = next((TYPES[name][1] for name in modifiers if name in TYPES), 16)
    count = 1 if instruction.opcode in _ATOMICS else next((_VECTORS[n] for n in modifiers if n in _VECTORS), 1)
    return min((element * count).bit_length() - 1, _LARGEST_SHIFT)


def _touches_shared(instruction: Instruction) -> bool:
    if instruction.opcode not in ("ld", "st", "atom", "red", "cp", "mbarrier"):
        return False
    names = set(instruction.modifiers)
    return not names & (_OTHER_SPACES | {"global", "const"}) or bool(names & _SHARED_ONLY)


def _touches_global(instruction: Instruction) -> bool:
    if instruction.opcode not in ("ld", "ldu", "st", "atom", "red", "cp"):
        return False
    return not set(instruction.modifiers) & (_OTHER_SPACES | _SHARED_ONLY) or instruction.opcode == "cp"


def _orders(instruction: Instruction) -> bool:
    names = instruction.modifiers
    if instruction.opcode in ("fence", "membar"):
        return "proxy" not in names and "mbarrier_init" not in names
    return instruction.opcode in ("ld", "st", "atom", "red") and bool({"acquire", "release", "acq_rel"} & set(names))


def _is_asynchronous(instruction: Instruction) -> bool:
    names = instruction.modifiers
    return instruction.opcode in ("mbarrier", "wgmma") or (instruction.opcode == "cp" and "bulk" in names)
