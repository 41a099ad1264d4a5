"""Finds loops that wait for other threads, and whether such a loop can end although no thread stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowdnn.driver.emulated.parsing.ir import Instruction, Special

if TYPE_CHECKING:
    from lowdnn.driver.emulated.generating.flow import Block

_SPIN_LOADS = frozenset({"volatile", "relaxed", "acquire", "mmio"})
_CLOCKS = ("%clock", "%globaltimer")


def find_waiting_loops(blocks: list[Block]) -> None:
    """Sets ``spins``, ``polls`` and ``varies`` of the blocks whose backward branch closes a waiting loop."""
    for block in blocks:
        for head in block.targets:
            if head <= block.index:
                loop = [instruction for b in blocks[head : block.index + 1] for instruction in b.body]
                block.spins = block.spins or any(_waits(i) for i in loop)
                block.polls = block.polls or any(_polls(i) for i in loop)
    _find_varying([block for block in blocks if block.spins or block.polls], blocks)


def _polls(instruction: Instruction) -> bool:
    """Whether the instruction tests a phase of an mbarrier."""
    return instruction.opcode == "mbarrier" and instruction.modifiers[:1] in (("test_wait",), ("try_wait",))


def _waits(instruction: Instruction) -> bool:
    """Whether the instruction reads a value by which threads may wait for each other: volatile, strong or atomic."""
    return instruction.opcode == "atom" or (
        instruction.opcode == "ld" and not _SPIN_LOADS.isdisjoint(instruction.modifiers)
    )


def _find_varying(waiting: list[Block], blocks: list[Block]) -> None:
    """Sets ``varies``: an iteration repeats the last one unless the loop carries a register that it writes, or reads a
    clock."""
    if not waiting:
        return
    before: list[list[int]] = [[] for _ in blocks]
    for block in blocks:
        for follower in block.followers:
            before[follower].append(block.index)
    for block in waiting:
        for head in (target for target in block.targets if target <= block.index):
            carried = blocks[head].live_in
            loop = [blocks[place] for place in _loop(before, head, block.index)]
            block.varies |= any(not carried.isdisjoint(b.writes) or any(map(_reads_clock, b.body)) for b in loop)


def _loop(before: list[list[int]], head: int, last: int) -> set[int]:
    """The blocks that lead to ``last`` without passing ``head``, and ``head``."""
    loop, left = {head, last}, [last]
    while left:
        place = left.pop()
        if place != head:
            left += [one for one in before[place] if one not in loop]
            loop.update(before[place])
    return loop


def _reads_clock(instruction: Instruction) -> bool:
    return any(isinstance(one, Special) and one.name.startswith(_CLOCKS) for one in instruction.operands)
