"""wgmma. PTX ISA manual, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.flow import registers_of
from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row
from lowdnn.driver.emulated.generating.wgmma_registers import tuple_key
from lowdnn.driver.emulated.parsing.ir import Imm, Instruction, Operand, Vec
from lowdnn.driver.emulated.running import warpgroup
from lowdnn.driver.emulated.values.wgmma import WarpgroupProduct, warpgroup_product
from lowdnn.status import NotSupportedError

_GROUPS = "G.batch.commit_groups"
_HALVES = ("f16", "bf16")


def _wgmma(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    form = m.need("mma_async", "fence", "commit_group", "wait_group")
    m.need("sync")
    m.need("aligned")
    if form == "mma_async":
        _multiply(e, m, instruction.operands)
        return
    m.done()
    if form == "fence":
        e.do(f"{_GROUPS}.fence(G)")
    elif form == "commit_group":
        e.do(f"{_GROUPS}.commit(G)")
    elif form == "wait_group":
        e.do(f"{_GROUPS}.wait(G,{_literal(e, instruction.operands[0])})")


def _multiply(e: Emitter, m: Modifiers, operands: tuple[Operand, ...]) -> None:
    """mma_async.sync.aligned.shape{.satfinite}.d.a.b d, a, b-desc, scale-d{, scale-a, scale-b{, trans-a}, trans-b}."""
    satfinite = m.flag("satfinite")
    if len(m.left) != 4 or len(operands) < 4:
        raise m.refusal("is not a form of wgmma that is supported")
    shape, d, a, b = m.left
    target, left, right, scale_d, *rest = operands
    in_registers = isinstance(left, Vec)
    negate, transposed = _immediates(e, rest, a, in_registers)
    try:
        product = warpgroup_product(shape, d, a, b, satfinite, transposed, negate)
    except NotSupportedError as cause:
        raise e.refuse(str(cause)) from cause
    items = _vector(e, target, product.registers)
    _note_use(e, target)
    factor = _factor(e, left) if in_registers else e.use(left, "u8")
    late = e.wgmma.unfenced.get(id(e.instruction))
    if late is not None:
        e.do(e.call(warpgroup.missing_fence, "G", repr(late)))
    before = f"({','.join(e.raw(item) for item in items)},)"
    arguments = (_name(e, product), before, factor, e.use(right, "u8"), e.use(scale_d, "p"))
    values = e.temps(len(items), e.call(warpgroup.issue, "G", *arguments))
    for item, value in zip(items, values, strict=True):
        e.out_raw(item, product.code, value)


def _factor(e: Emitter, operand: Operand) -> str:
    """A from registers."""
    items = _vector(e, operand, 4)
    _note_use(e, operand)
    return f"({','.join(e.use(item, 'u4') for item in items)},)"


def _note_use(e: Emitter, operand: Operand) -> None:
    """Emits the note of the registers that must not be written until the product is complete."""
    key = tuple_key(registers_of(operand))
    e.do(f"{_GROUPS}.note_use(G,{key!r})")
    e.writable.discard(key)


def _immediates(e: Emitter, rest: list[Operand], a: str, in_registers: bool) -> tuple[bool, tuple[bool, bool]]:
    """(is the product negated, (is A, is B transposed))."""
    scales = 0 if a in ("s8", "u8") else 2
    transposes = (1 if in_registers else 2) if a in _HALVES else 0
    values = [_literal(e, operand) for operand in rest]
    if len(values) != scales + transposes:
        raise e.refuse(f"expected {4 + scales + transposes} operands")
    signs, flags = values[:scales], values[scales:]
    if any(sign not in (1, -1) for sign in signs) or any(flag not in (0, 1) for flag in flags):
        raise e.refuse("scales must be 1 or -1, transposes 0 or 1")
    transposed_a = len(flags) == 2 and flags[0] == 1
    return signs.count(-1) == 1, (transposed_a, bool(flags) and flags[-1] == 1)


def _literal(e: Emitter, operand: Operand) -> int:
    if not isinstance(operand, Imm):
        raise e.refuse("expected a number")
    return operand.value


def _vector(e: Emitter, operand: Operand, count: int) -> tuple[Operand, ...]:
    if not isinstance(operand, Vec) or len(operand.items) != count:
        raise e.refuse(f"expected {count} registers")
    return operand.items


def _name(e: Emitter, product: WarpgroupProduct) -> str:
    p = product
    flags = f"{p.transposed_a:d}{p.transposed_b:d}{p.negate:d}{p.satfinite:d}"
    return e.object(f"F_wgmma_n{p.columns}_{p.d}_{p.a}_{p.b}_{flags}", p)


TABLE: dict[str, Row] = {"wgmma": Row(_wgmma, Effect.WARP, accumulates=True)}
