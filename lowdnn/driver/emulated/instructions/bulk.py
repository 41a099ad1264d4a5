"""Bulk copies and asynchronous stores. PTX ISA manual, "cp.async.bulk", "cp.reduce.async.bulk",
"cp.async.bulk.prefetch", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "st.async", "red.async".

``bulk_copy`` emits every ``cp`` whose modifiers name ``bulk`` and not ``tensor``.
"""

from __future__ import annotations

from lowdnn.driver.emulated.copying import bulk_copies
from lowdnn.driver.emulated.copying.async_work import Reduction
from lowdnn.driver.emulated.generating.generator import SIZES, Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row, code_of
from lowdnn.driver.emulated.instructions.memory import address_of
from lowdnn.driver.emulated.parsing.ir import Imm, Instruction, Operand, Vec
from lowdnn.driver.emulated.values.atomic import updater

_WORK = "G.batch.async_work"
_COMPLETION = "mbarrier::complete_tx::bytes"
_SHARED_TYPES = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",), "dec": ("u32",),
    "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip
_EXTREMES = ("u32", "s32", "u64", "s64", "f16", "bf16")
_BITS = ("b32", "b64")
_GLOBAL_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"), "min": _EXTREMES, "max": _EXTREMES, "inc": ("u32",),
    "dec": ("u32",), "and": _BITS, "or": _BITS, "xor": _BITS,
}  # fmt: skip
_UNSIGNED = {4: "u4", 8: "u8"}


def bulk_copy(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    reduces = m.flag("reduce")
    m.need("async")
    m.need("bulk")
    operands = list(instruction.operands)
    form = m.choice("commit_group", "wait_group", "prefetch")
    if form == "prefetch":
        _prefetch(e, m, operands)
    elif form:
        _group(e, m, operands, form)
    else:
        _copy(e, m, operands, reduces)


def asynchronous_store(e: Emitter, instruction: Instruction) -> None:
    """st.async and red.async to shared memory of the cluster."""
    m = e.modifiers()
    m.need("async")
    reduces = instruction.opcode == "red"
    if reduces:
        m.need("relaxed")
        m.need("cluster")
    else:
        m.flag("weak")
    m.flag("shared::cluster")
    m.need(_COMPLETION)
    reduction = "None"
    count = 1
    if reduces:
        reduction, size = _reduction(e, m, _SHARED_TYPES, in_global=False)
    else:
        count = {"v2": 2, "v4": 4}.get(m.choice("v2", "v4"), 1)
        size = SIZES[code_of(m.type("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"))]
    m.done()
    if size * count > 16:
        raise e.refuse("stores at most 16 bytes")
    target, source, barrier = instruction.operands
    items = source.items if isinstance(source, Vec) else (source,)
    if len(items) != count:
        raise e.refuse(f"expected {count} sources")
    values = ",".join(e.use(item, _UNSIGNED[size]) for item in items)
    arguments = (_place(e, target), f"({values},)", str(size), _place(e, barrier), str(instruction.line), reduction)
    e.do(e.call(bulk_copies.send, "G", *arguments))


def _copy(e: Emitter, m: Modifiers, operands: list[Operand], reduces: bool) -> None:
    to = m.need("global", "shared::cluster", "shared::cta")
    of = m.need("global", "shared::cta")
    if m.flag("L2::cache_hint"):
        operands.pop()
    line = str(e.instruction.line)
    if to == "global" and of == "shared::cta":
        m.need("bulk_group")
        reduction = _reduction(e, m, _GLOBAL_TYPES, in_global=True)[0] if reduces else "None"
        m.done()
        target, source, size = _exactly(e, operands, 3)
        operand_texts = (_place(e, target), _place(e, source), e.use(size, "u4"))
        e.do(e.call(bulk_copies.store, "G", *operand_texts, line, reduction))
        return
    m.need(_COMPLETION)
    ctas = e.use(operands.pop(), "u2") if to == "shared::cluster" and m.flag("multicast::cluster") else "None"
    reduction = _reduction(e, m, _SHARED_TYPES, in_global=False)[0] if reduces else "None"
    m.done()
    target, source, size, barrier = _exactly(e, operands, 4)
    places = (_place(e, target), _place(e, source), e.use(size, "u4"), _place(e, barrier))
    if of == "global" and to != "global" and not reduces:
        space = "cluster" if to == "shared::cluster" else "shared"
        e.do(e.call(bulk_copies.load, "G", *places, repr(space), ctas, line))
    elif (to, of, ctas) == ("shared::cluster", "shared::cta", "None"):
        e.do(e.call(bulk_copies.exchange, "G", *places, line, reduction))
    else:
        raise e.refuse(f"no copy from .{of} to .{to} of this form")


def _reduction(e: Emitter, m: Modifiers, types: dict[str, tuple[str, ...]], in_global: bool) -> tuple[str, int]:
    """(name of the ``Reduction``, bytes of an element). f32 sums in global memory flush subnormals, as ``red`` does."""
    operation = m.need(*types)
    unflushed = m.flag("noftz")
    kind = m.type(*types[operation])
    if unflushed != (operation == "add" and kind in ("f16", "bf16")):
        raise e.refuse(".noftz belongs to .add of .f16 and .bf16")
    code = code_of(kind)
    reduction = Reduction(updater(operation, kind, ftz=in_global), code)
    return e.object(f"L_reduction_{operation}_{kind}_{in_global}", reduction), SIZES[code]


def _prefetch(e: Emitter, m: Modifiers, operands: list[Operand]) -> None:
    m.need("L2")
    m.need("global")
    if m.flag("L2::cache_hint"):
        operands.pop()
    m.done()
    source, size = _exactly(e, operands, 2)
    e.do(e.call(bulk_copies.prefetch, "G", _place(e, source), e.use(size, "u4")))


def _group(e: Emitter, m: Modifiers, operands: list[Operand], form: str) -> None:
    read = m.flag("read")
    m.done()
    if form == "commit_group":
        e.do(f"{_WORK}.commit(G)")
        return
    (newest,) = _exactly(e, operands, 1)
    if not isinstance(newest, Imm):
        raise e.refuse("the number of groups must be a number")
    e.do(f"{_WORK}.wait(G,{newest.value},{read})")


def _exactly(e: Emitter, operands: list[Operand], count: int) -> list[Operand]:
    if len(operands) != count:
        raise e.refuse(f"expected {count} operands, got {len(operands)}")
    return operands


def _place(e: Emitter, operand: Operand) -> str:
    base, offset = address_of(e, operand)
    return f"({base},{offset})"


def asynchronous_or(plain: Row) -> Row:
    """``st`` or ``red`` with its ``.async`` form."""

    def emit(e: Emitter, instruction: Instruction) -> None:
        (asynchronous_store if instruction.modifiers[:1] == ("async",) else plain.emit)(e, instruction)

    return Row(emit, Effect.ACTION, destinations=0)
