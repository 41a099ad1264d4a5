"""Which registers ``wgmma`` uses, and where the rules about them are broken whatever the data.

PTX ISA manual, "wgmma.fence": registers that other instructions have written must be fenced before ``wgmma.mma_async``
takes them as accumulators or as A. ``mov`` is left out: compilers put copies and constants between a fence and the
product, and what is copied counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn.driver.emulated.generating.flow import Block, Flow, registers_of
from lowdnn.driver.emulated.generating.rows import Row
from lowdnn.driver.emulated.parsing.ir import FunctionIR, Instruction, Reg, Vec

#: Opcodes whose results are kept as matrices until an instruction reads their registers.
_HOLDERS = frozenset({"wgmma", "mma", "ldmatrix"})


@dataclass(frozen=True)
class WgmmaRegisters:
    """Registers of one function. ``accumulators``: may hold accumulators in flight. ``factors``: registers of A,
    ``results``: registers of accumulators, each with the name of its tuple. ``unfenced``: by ``id`` of the product, a
    register that may reach it without a fence."""

    accumulators: frozenset[str]
    factors: Mapping[str, str]
    results: Mapping[str, str]
    unfenced: Mapping[int, str]


def wgmma_registers(function: FunctionIR, flow: Flow, table: Mapping[str, Row]) -> WgmmaRegisters:
    holders = [i for block in flow.blocks for i in block.body if i.opcode in _HOLDERS]
    if not holders:
        return WgmmaRegisters(frozenset(), {}, {}, {})
    products = [i for i in holders if is_product(i)]
    copies = [pair for i in function.body if (pair := _copied(i)) is not None]
    held = {name for i in holders if i.operands for name in registers_of(i.operands[0])}
    results = _keys([registers_of(i.operands[0]) for i in products])
    factors = _keys([registers_of(i.operands[1]) for i in products if isinstance(i.operands[1], Vec)])
    inputs = _closure(results.keys() | factors.keys(), [(source, target) for target, source in copies])
    unfenced = _Fences(flow, table, inputs).unfenced() if products else {}
    return WgmmaRegisters(frozenset(_closure(held, copies)), factors, results, unfenced)


def is_product(instruction: Instruction) -> bool:
    return instruction.opcode == "wgmma" and instruction.modifiers[:1] == ("mma_async",)


def tuple_key(names: tuple[str, ...]) -> str:
    """The name of a tuple of registers."""
    return ",".join(names)


def _keys(tuples: list[tuple[str, ...]]) -> dict[str, str]:
    return {name: tuple_key(names) for names in tuples for name in names}


def _copied(instruction: Instruction) -> tuple[str, str] | None:
    """(target, source) of a plain ``mov`` between registers."""
    if instruction.opcode != "mov" or len(instruction.operands) != 2:
        return None
    target, source = instruction.operands
    return (target.name, source.name) if isinstance(target, Reg) and isinstance(source, Reg) else None


def _closure(names: set[str], copies: list[tuple[str, str]]) -> set[str]:
    """The names, and all names to which copies (target, source) propagate them."""
    targets: dict[str, list[str]] = {}
    for target, source in copies:
        targets.setdefault(source, []).append(target)
    found, left = set(names), list(names)
    while left:
        fresh = [name for name in targets.get(left.pop(), ()) if name not in found]
        found.update(fresh)
        left += fresh
    return found


class _Fences:
    """Follows, along all paths, which ``inputs`` have been written since the last fence."""

    def __init__(self, flow: Flow, table: Mapping[str, Row], inputs: set[str]) -> None:
        self._blocks = flow.blocks
        self._table = table
        self._inputs = inputs
        self._found: dict[int, str] = {}

    def unfenced(self) -> dict[int, str]:
        before: list[frozenset[str]] = [frozenset()] * len(self._blocks)
        left = set(range(len(self._blocks)))
        while left:
            block = self._blocks[left.pop()]
            after = self._after(block, before[block.index])
            for follower in (*block.targets, *((block.next,) if block.next >= 0 else ())):
                if not after <= before[follower]:
                    before[follower] |= after
                    left.add(follower)
        return self._found

    def _after(self, block: Block, written: frozenset[str]) -> frozenset[str]:
        state = set(written)
        for instruction, (_, writes) in zip(block.body, block.touched, strict=True):
            if instruction.opcode == "wgmma":
                self._step(instruction, state)
            elif instruction.opcode == "mov":
                self._copy(instruction, writes, state)
            else:
                state.update(self._inputs.intersection(writes))
        return frozenset(state)

    def _step(self, instruction: Instruction, state: set[str]) -> None:
        if instruction.modifiers[0] == "fence":
            state.clear()
        elif is_product(instruction):
            used = [name for operand in instruction.operands[:2] for name in registers_of(operand)]
            late = [name for name in used if name in state]
            if late:
                self._found[id(instruction)] = late[0]
            state.difference_update(registers_of(instruction.operands[0]))

    def _copy(self, instruction: Instruction, writes: list[str], state: set[str]) -> None:
        copied = _copied(instruction)
        if instruction.predicate is None:
            state.difference_update(writes)
        if copied is not None and copied[1] in state and copied[0] in self._inputs:
            state.add(copied[0])
