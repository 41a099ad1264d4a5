"""cp.async and its groups. PTX ISA manual, "cp.async", "cp.async.commit_group", "cp.async.wait_group"."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row
from lowdnn.driver.emulated.instructions.bulk import bulk_copy
from lowdnn.driver.emulated.instructions.mbarrier import barrier_place
from lowdnn.driver.emulated.instructions.memory import address_of, drop_hints
from lowdnn.driver.emulated.instructions.tma import tensor_copy
from lowdnn.driver.emulated.parsing.ir import Imm, Instruction

_COPIES = "G.batch.copies"


def _cp(e: Emitter, instruction: Instruction) -> None:
    if "tensor" in instruction.modifiers:
        tensor_copy(e, instruction)
        return
    if "bulk" in instruction.modifiers:
        bulk_copy(e, instruction)
        return
    m = e.modifiers()
    m.need("async")
    if m.flag("mbarrier"):
        _arrive(e, m, instruction)
        return
    form = m.choice("commit_group", "wait_group", "wait_all")
    if form:
        m.done()
        _group(e, instruction, form)
        return
    m.need("ca", "cg")
    m.need("shared", "shared::cta")
    m.need("global")
    hint = drop_hints(m)
    m.done()
    operands = list(instruction.operands)
    if hint:
        operands.pop()
    target, source, size = operands[:3]
    if not isinstance(size, Imm) or size.value not in (4, 8, 16):
        raise e.refuse("cp-size must be 4, 8 or 16")
    to, to_offset = address_of(e, target)
    of, of_offset = address_of(e, source)
    kept = "None"
    if len(operands) > 3:
        if e.register_kind(operands[3]) == "pred":
            ignored = e.use(operands[3], "p")
            kept = f"where({ignored},{e.constant(0, 'u4')},{e.constant(size.value, 'u4')})[()]"
        else:
            kept = e.use(operands[3], "u4")
    e.do(f"{_COPIES}.issue(G,{to},{to_offset},{of},{of_offset},{size.value},{kept})")


def _group(e: Emitter, instruction: Instruction, form: str) -> None:
    if form == "commit_group":
        e.do(f"{_COPIES}.commit(G)")
        return
    pending = -1
    if form == "wait_group":
        operand = instruction.operands[0]
        if not isinstance(operand, Imm):
            raise e.refuse("the number of groups must be a number")
        pending = operand.value
    e.do(f"{_COPIES}.wait(G,{pending})")


def _arrive(e: Emitter, m: Modifiers, instruction: Instruction) -> None:
    """cp.async.mbarrier.arrive: the copies issued so far arrive when they have landed."""
    m.need("arrive")
    counted = m.flag("noinc")
    m.choice("shared", "shared::cta")
    m.type("b64")
    m.done()
    place = barrier_place(e, instruction.operands[0], "shared")
    e.do(f"G.batch.async_work.arrive_after_copies(G,{place},{counted},{instruction.line})")


TABLE: dict[str, Row] = {"cp": Row(_cp, Effect.ACTION, destinations=0)}
