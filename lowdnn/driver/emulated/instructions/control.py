"""Control flow, barriers of CTAs and clusters. PTX ISA manual, "Control Flow Instructions", "bar, barrier",
"barrier.cluster"."""

from __future__ import annotations

from lowdnn.driver.emulated.faults import unsupported
from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row
from lowdnn.driver.emulated.parsing.ir import Instruction, Reg
from lowdnn.driver.emulated.running.barriers import BarrierOp


def _bra(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.flag("uni")
    m.done()
    if instruction.predicate is not None:
        condition = e.use(instruction.predicate, "p")
        e.do(f"return ~{condition}" if instruction.negated else f"return {condition}")


def _table(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.need("idx")
    m.flag("uni")
    m.done()
    e.do(f"return {e.use(instruction.operands[0], 'u4')}")


def _stop(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.flag("uni")
    m.done()


def barrier_operation(instruction: Instruction) -> tuple[BarrierOp, Reg | None]:
    """The static part of bar / barrier and the destination of a ``red`` form."""
    m = Modifiers(instruction)
    if m.flag("cluster"):
        return _cluster_operation(m), None
    m.flag("cta")
    kind = m.choice("sync", "arrive", "red")
    if not kind:
        raise unsupported(f"{instruction.name} is not supported", instruction.line)
    aligned = instruction.opcode == "bar" or m.flag("aligned")
    reduction = m.need("popc", "and", "or") if kind == "red" else ""
    if reduction:
        m.type("u32") if reduction == "popc" else m.type("pred")
    m.done()
    target = instruction.operands[0] if kind == "red" else None
    return BarrierOp(kind, aligned, reduction), target if isinstance(target, Reg) else None


def _cluster_operation(m: Modifiers) -> BarrierOp:
    kind = m.need("arrive", "wait")
    order = m.choice("release", "relaxed") if kind == "arrive" else m.choice("acquire")
    aligned = m.flag("aligned")
    m.done()
    return BarrierOp(f"cluster.{kind}", aligned, ordered=order != "relaxed")


def _bar(e: Emitter, instruction: Instruction) -> None:
    """bar.warp.sync does nothing more: the lanes of its mask are together already."""
    if instruction.modifiers == ("warp", "sync"):
        return
    operation, _ = barrier_operation(instruction)
    if operation.kind.startswith("cluster."):
        e.do("return")
        return
    operands = list(instruction.operands)
    predicate = "None"
    if operation.kind == "red":
        predicate = e.use(operands.pop(), "p")
        operands = operands[1:]
    number = e.use(operands[0], "u4")
    count = e.use(operands[1], "u4") if len(operands) > 1 else "None"
    e.do(f"return {number},{count},{predicate}")


TABLE: dict[str, Row] = {
    "bra": Row(_bra, Effect.END, destinations=0),
    "brx": Row(_table, Effect.END, destinations=0),
    "ret": Row(_stop, Effect.END, destinations=0),
    "exit": Row(_stop, Effect.END, destinations=0),
    "trap": Row(_stop, Effect.END, destinations=0),
    "bar": Row(_bar, Effect.END, destinations=0),
    "barrier": Row(_bar, Effect.END, destinations=0),
}
