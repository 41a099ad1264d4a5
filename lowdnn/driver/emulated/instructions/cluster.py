"""Addresses in the shared memory of a cluster. PTX ISA manual, "mapa", "getctarank"."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Row, code_of
from lowdnn.driver.emulated.memory.address import cta_rank, mapped
from lowdnn.driver.emulated.parsing.ir import Instruction


def _form(e: Emitter) -> str:
    """The value code of the addresses; generic ones have 64 bits."""
    m = e.modifiers()
    in_cluster = m.flag("shared::cluster")
    kind = m.type("u32", "u64")
    m.done()
    if kind == "u32" and not in_cluster:
        raise e.refuse("generic addresses have 64 bits")
    return code_of(kind)


def _map(e: Emitter, instruction: Instruction) -> None:
    code = _form(e)
    target, address, rank = instruction.operands
    e.out(target, code, e.call(mapped, "G", e.use(address, code), e.use(rank, "u4")))


def _rank(e: Emitter, instruction: Instruction) -> None:
    code = _form(e)
    target, address = instruction.operands
    e.out(target, "u4", e.call(cta_rank, "G", e.use(address, code)))


TABLE: dict[str, Row] = {
    "mapa": Row(_map, Effect.ACTION),
    "getctarank": Row(_rank),
}
