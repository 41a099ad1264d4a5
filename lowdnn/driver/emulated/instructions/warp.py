"""Warp-wide exchange. PTX ISA manual: "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync"."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Row, code_of
from lowdnn.driver.emulated.parsing.ir import Instruction, Operand, Pair
from lowdnn.driver.emulated.running import collective


def _pair(e: Emitter, target: Operand, first_code: str, expression: str) -> None:
    """Assigns the destination ``d`` or ``d|p`` from a call that returns (value, predicate)."""
    first, second = e.temps(2, expression)
    if isinstance(target, Pair):
        e.out(target.first, first_code, first)
        e.out(target.second, "p", second)
    else:
        e.out(target, first_code, first)


def _shuffle(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.need("sync")
    mode = m.need("up", "down", "bfly", "idx")
    m.type("b32")
    m.done()
    target, *sources = instruction.operands
    arguments = [e.use(operand, "u4") for operand in sources]
    _pair(e, target, "u4", e.call(collective.shuffle, "G", repr(mode), *arguments))


def _vote(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.need("sync")
    mode = m.need("all", "any", "uni", "ballot")
    code = code_of(m.type("b32" if mode == "ballot" else "pred"))
    m.done()
    target, predicate, mask = instruction.operands
    e.out(target, code, e.call(collective.vote, "G", repr(mode), e.use(predicate, "p"), e.use(mask, "u4")))


def _match(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    mode = m.need("any", "all")
    m.need("sync")
    code = code_of(m.type("b32", "b64"))
    m.done()
    target, value, mask = instruction.operands
    arguments = ("G", e.use(value, code), e.use(mask, "u4"))
    if mode == "any":
        e.out(target, "u4", e.call(collective.match_any, *arguments))
    else:
        _pair(e, target, "u4", e.call(collective.match_all, *arguments))


def _reduce(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.need("sync")
    operation = m.need("add", "min", "max", "and", "or", "xor")
    code = code_of(m.type("u32", "s32", "b32"))
    m.done()
    target, value, mask = instruction.operands
    e.out(target, code, e.call(collective.reduce, "G", repr(operation), e.use(value, code), e.use(mask, "u4")))


def _elect(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.need("sync")
    m.done()
    target, mask = instruction.operands
    _pair(e, target, "u4", e.call(collective.elect, "G", e.use(mask, "u4")))


def _active(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.type("b32")
    m.done()
    e.out(instruction.operands[0], "u4", e.call(collective.active_mask, "G"))


TABLE: dict[str, Row] = {
    "shfl": Row(_shuffle, Effect.WARP, mask=4),
    "vote": Row(_vote, Effect.WARP, mask=2),
    "match": Row(_match, Effect.WARP, mask=2),
    "redux": Row(_reduce, Effect.WARP, mask=2),
    "elect": Row(_elect, Effect.WARP, mask=1),
    "activemask": Row(_active, Effect.ACTION),
}
