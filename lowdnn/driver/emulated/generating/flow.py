"""Basic blocks of a function, liveness and the home type of each register.

A block ends at a label that is branched to, at an END instruction, and before a WARP instruction whose lanes must
first be brought together. A guarded instruction with an effect becomes a branch around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from lowdnn.driver.emulated.faults import invalid, unsupported
from lowdnn.driver.emulated.generating.loops import find_waiting_loops
from lowdnn.driver.emulated.generating.rows import Effect, Row
from lowdnn.driver.emulated.parsing.ir import (
    TYPES,
    FunctionIR,
    Imm,
    Instruction,
    Mem,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)

FULL_MASK = Imm(0xFFFFFFFF, "i")
#: Stands for the mask of an instruction that needs all lanes of four aligned warps.
WARPGROUP = Imm(0xFFFFFFFF, "warpgroup")
_MEMORY = frozenset({"ld", "st", "atom", "red", "cp", "ldmatrix", "stmatrix"})

_WITHOUT_REGISTERS = frozenset({Imm, Sink, Special, Sym})

#: (registers read, registers written) by an instruction.
Touched = tuple[list[str], list[str]]


@dataclass
class Block:
    """Straight-line code. ``end`` is its END instruction, if any; ``next`` the block that follows in the text.

    ``mask``: the lanes that must be together at its start. ``reads``: registers taken from the register file,
    ``writes``: registers put back. ``spins``: its backward branch closes a loop that waits for others, ``polls``: one
    that waits at an mbarrier; ``varies``: a turn of it may differ from the last although nobody has stored anything.
    ``touched``: registers that each instruction of the body reads and writes.
    """

    index: int
    body: list[Instruction]
    end: Instruction | None = None
    targets: tuple[int, ...] = ()
    next: int = -1
    mask: Operand | None = None
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    live_in: set[str] = field(default_factory=set)
    live_out: set[str] = field(default_factory=set)
    spins: bool = False
    polls: bool = False
    varies: bool = False
    touched: list[Touched] = field(default_factory=list)
    end_reads: list[str] = field(default_factory=list)

    @property
    def line(self) -> int:
        first = self.body[0] if self.body else self.end
        return first.line if first is not None else 0

    @property
    def followers(self) -> tuple[int, ...]:
        """The blocks that may run next."""
        return self.targets if self.next < 0 else (*self.targets, self.next)


@dataclass
class Flow:
    """The blocks of a function in text order, and the value code each register is kept in."""

    blocks: list[Block]
    homes: dict[str, str]


def build_flow(function: FunctionIR, table: Mapping[str, Row]) -> Flow:
    """Refuses unknown opcodes."""
    for instruction in function.body:
        if instruction.opcode not in table:
            raise unsupported(f"instruction {instruction.name}", instruction.line)
    body, labels = _without_guarded_effects(function, table)
    blocks = _cut(function, body, labels, table)
    _find_liveness(blocks, table)
    find_waiting_loops(blocks)
    return Flow(blocks, _home_codes(function, blocks))


def registers_of(operand: Operand) -> tuple[str, ...]:
    """Names of all registers in an operand."""
    if operand.__class__ in _WITHOUT_REGISTERS:
        return ()
    if isinstance(operand, Reg):
        return (operand.name,)
    if isinstance(operand, Mem):
        inner: tuple[Operand, ...] = (operand.base, *operand.extra)
    elif isinstance(operand, Vec):
        inner = operand.items
    elif isinstance(operand, Pair):
        inner = (operand.first, operand.second)
    elif isinstance(operand, Not):
        inner = (operand.register,)
    else:
        return ()
    return tuple(name for one in inner for name in registers_of(one))


def reads_and_writes(instruction: Instruction, row: Row) -> Touched:
    """Registers that an instruction reads and writes. A guarded write also reads."""
    reads: list[str] = []
    writes: list[str] = []
    for place, operand in enumerate(instruction.operands):
        names = registers_of(operand)
        if place >= row.destinations or isinstance(operand, Mem):
            reads += names
            continue
        writes += names
        if row.accumulates:
            reads += names
    if instruction.predicate is not None:
        reads.append(instruction.predicate.name)
        reads += writes
    return reads, writes


def _without_guarded_effects(
    function: FunctionIR, table: Mapping[str, Row]
) -> tuple[list[Instruction], dict[str, int]]:
    places: dict[int, list[str]] = {}
    for label, place in function.labels.items():
        places.setdefault(place, []).append(label)
    body: list[Instruction] = []
    labels: dict[str, int] = {}
    for place, instruction in enumerate(function.body):
        for label in places.get(place, ()):
            labels[label] = len(body)
        guard = instruction.predicate
        if guard is None or instruction.opcode == "bra" or table[instruction.opcode].effect is Effect.VALUE:
            body.append(instruction)
            continue
        skip = f"~{place}"
        line = instruction.line
        body.append(Instruction("bra", (), (Sym(skip),), line, guard, not instruction.negated))
        body.append(Instruction(instruction.opcode, instruction.modifiers, instruction.operands, line))
        labels[skip] = len(body)
    for label in places.get(len(function.body), ()):
        labels[label] = len(body)
    return body, labels


def _cut(
    function: FunctionIR, body: list[Instruction], labels: dict[str, int], table: Mapping[str, Row]
) -> list[Block]:
    targets = {labels[name] for i in body for name in _target_names(function, i, labels)}
    blocks: list[Block] = []
    block_at: dict[int, int] = {}
    current: Block | None = None
    together: Operand | None = None
    for place, instruction in enumerate(body):
        row = table[instruction.opcode]
        mask = _member_mask(instruction, row)
        if place in targets:
            current, together = None, None
        if mask is not None and not _includes(together, mask):
            current, together = None, mask
        if current is None:
            current = Block(len(blocks), [], mask=together)
            block_at[place] = current.index
            blocks.append(current)
        if _ends(instruction, row):
            current.end = instruction
            current, together = None, None
        else:
            current.body.append(instruction)
    return _linked(function, body, labels, blocks, block_at)


def _linked(
    function: FunctionIR,
    body: list[Instruction],
    labels: dict[str, int],
    blocks: list[Block],
    block_at: dict[int, int],
) -> list[Block]:
    if not blocks or _falls_through(blocks[-1].end) or any(labels[n] == len(body) for n in labels):
        block_at[len(body)] = len(blocks)
        line = body[-1].line if body else function.line
        blocks.append(Block(len(blocks), [], end=Instruction("ret", (), (), line)))
    for block in blocks:
        if _falls_through(block.end):
            block.next = block.index + 1
        if block.end is not None:
            names = _target_names(function, block.end, labels)
            block.targets = tuple(block_at[labels[name]] for name in names)
    return blocks


def _ends(instruction: Instruction, row: Row) -> bool:
    return row.effect is Effect.END and not (instruction.opcode == "bar" and instruction.modifiers[:1] == ("warp",))


def _falls_through(end: Instruction | None) -> bool:
    if end is None or end.opcode in ("bar", "barrier"):
        return True
    return end.opcode == "bra" and end.predicate is not None


def _includes(together: Operand | None, mask: Operand) -> bool:
    """Are lanes that are together enough for an instruction with ``mask``."""
    return together in (WARPGROUP, mask) or (together == FULL_MASK and mask != WARPGROUP)


def _member_mask(instruction: Instruction, row: Row) -> Operand | None:
    if instruction.opcode == "bar" and instruction.modifiers[:1] == ("warp",):
        return instruction.operands[0]
    if row.effect is Effect.END:
        return FULL_MASK if instruction.opcode == "bar" or "aligned" in instruction.modifiers else None
    if row.effect is not Effect.WARP:
        return FULL_MASK if "sync" in instruction.modifiers and "aligned" in instruction.modifiers else None
    if row.mask is None:
        of_warpgroups = instruction.opcode == "setmaxnreg" or instruction.modifiers[:1] == ("mma_async",)
        return WARPGROUP if of_warpgroups else FULL_MASK
    try:
        mask = instruction.operands[row.mask]
    except IndexError:
        raise invalid(f"{instruction.name} needs a member mask", instruction.line) from None
    return FULL_MASK if isinstance(mask, Imm) and mask.value & 0xFFFFFFFF == FULL_MASK.value else mask


def _target_names(function: FunctionIR, instruction: Instruction, labels: dict[str, int]) -> tuple[str, ...]:
    if instruction.opcode == "bra":
        names = tuple(operand.name for operand in instruction.operands if isinstance(operand, Sym))
    elif instruction.opcode == "brx":
        operand = instruction.operands[1]
        names = function.tables.get(operand.name, ()) if isinstance(operand, Sym) else ()
    else:
        return ()
    for name in names:
        if name not in labels:
            raise invalid(f"no label {name!r}", instruction.line)
    return names


def _find_liveness(blocks: list[Block], table: Mapping[str, Row]) -> None:
    for block in blocks:
        block.touched = [reads_and_writes(instruction, table[instruction.opcode]) for instruction in block.body]
        if block.end is not None:
            block.end_reads = reads_and_writes(block.end, table[block.end.opcode])[0]
        for reads, writes in (*block.touched, (block.end_reads, [])):
            block.reads.update(name for name in reads if name not in block.writes)
            block.writes.update(writes)
        if block.mask is not None:
            block.reads.update(registers_of(block.mask))
    _flow_back(blocks)
    for block in blocks:
        block.writes &= block.live_out


def _flow_back(blocks: list[Block]) -> None:
    """Computes the registers live into a block: those that it reads, and those that its followers need and it does not
    write."""
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out: set[str] = set()
            for follower in block.followers:
                out |= blocks[follower].live_in
            if out != block.live_out or not block.live_in:
                live = block.reads | (out - block.writes)
                changed = changed or live != block.live_in
                block.live_out, block.live_in = out, live


def _home_codes(function: FunctionIR, blocks: list[Block]) -> dict[str, str]:
    """The type that most instructions use a register with, among types of its size. Addresses have no vote."""
    declared = {name: TYPES[kind] for name, kind in function.registers.items()}
    votes: dict[str, dict[str, int]] = {}
    for block in blocks:
        for instruction, (reads, writes) in zip(block.body, block.touched, strict=True):
            codes = _codes_by_size(instruction.modifiers)
            if not codes:
                continue
            for name in writes if instruction.opcode in _MEMORY else (*reads, *writes):
                code = codes.get(declared[name][1])
                if code is not None:
                    ballot = votes.get(name)
                    if ballot is None:
                        ballot = votes[name] = {}
                    ballot[code] = ballot.get(code, 0) + 1
    homes = {name: code for name, (code, _) in declared.items()}
    for name, ballot in votes.items():
        if homes[name] != "p":
            homes[name] = max(ballot, key=ballot.__getitem__)
    return homes


@lru_cache(maxsize=4096)
def _codes_by_size(modifiers: tuple[str, ...]) -> dict[int, str]:
    """The first type of each size among an instruction's modifiers."""
    codes: dict[int, str] = {}
    for name in modifiers:
        if name in TYPES:
            code, size = TYPES[name]
            codes.setdefault(size, code)
    return codes
