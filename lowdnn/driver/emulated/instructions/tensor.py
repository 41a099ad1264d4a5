"""mma, ldmatrix, stmatrix, movmatrix. PTX ISA manual, "Warp-Level Matrix Instructions"."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row
from lowdnn.driver.emulated.instructions.memory import address_of
from lowdnn.driver.emulated.parsing.ir import Instruction, Operand, Vec
from lowdnn.driver.emulated.running import collective
from lowdnn.driver.emulated.values import tensor_core
from lowdnn.status import NotSupportedError

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_CODES = {"f64": "f8", "f32": "f4", "s32": "i4"}


def _items(e: Emitter, operand: Operand) -> tuple[Operand, ...]:
    if isinstance(operand, Vec):
        return operand.items
    return (operand,)


def _matrix_form(m: Modifiers) -> tuple[int, bool]:
    """(number of 8x8 matrices, transposed) of ldmatrix and stmatrix."""
    m.need("sync")
    m.need("aligned")
    m.need("m8n8")
    count = _COUNTS[m.need(*_COUNTS)]
    transposed = m.flag("trans")
    m.need("shared", "shared::cta")
    m.type("b16")
    m.done()
    return count, transposed


def _load_matrix(e: Emitter, instruction: Instruction) -> None:
    count, transposed = _matrix_form(e.modifiers())
    target, source = instruction.operands
    base, offset = address_of(e, source)
    items = _items(e, target)
    if len(items) != count:
        raise e.refuse(f"expected {count} destinations")
    values = e.temps(count, e.call(collective.load_matrix, "G", base, str(offset), str(count), str(transposed)))
    for item, value in zip(items, values, strict=True):
        e.out_raw(item, "u4", value)


def _store_matrix(e: Emitter, instruction: Instruction) -> None:
    count, transposed = _matrix_form(e.modifiers())
    target, source = instruction.operands
    base, offset = address_of(e, target)
    items = _items(e, source)
    if len(items) != count:
        raise e.refuse(f"expected {count} sources")
    e.do(e.call(collective.store_matrix, "G", base, str(offset), str(transposed), _tuple(e, items, "u4")))


def _move_matrix(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    for part in ("sync", "aligned", "m8n8", "trans"):
        m.need(part)
    m.type("b16")
    m.done()
    e.out(instruction.operands[0], "u4", e.call(collective.transpose_matrix, "G", e.use(instruction.operands[1], "u4")))


def _multiply(e: Emitter, instruction: Instruction) -> None:
    """mma.sync.aligned.shape.row.col{.satfinite}.d.a.b.c."""
    m = e.modifiers()
    m.need("sync")
    m.need("aligned")
    m.need("row")
    m.need("col")
    satfinite = m.flag("satfinite")
    if len(m.left) != 5:
        raise m.refusal("is not a form of mma that is supported")
    shape, d, a, b, c = m.left
    try:
        product = tensor_core.matrix_product(shape, a, b, c, d, satfinite)
    except NotSupportedError as cause:
        raise e.refuse(str(cause)) from cause
    name = e.object(f"F_mma_{shape}_{d}_{a}_{b}_{c}{'_satfinite' * satfinite}", product)
    operands = [_items(e, operand) for operand in instruction.operands]
    factors = "f8" if a == "f64" else "u4"
    codes = (factors, factors, _CODES.get(c, "u4"))
    sources = [
        f"({','.join(e.either(item, code) for item in items)},)"
        for items, code in zip(operands[1:], codes, strict=True)
    ]
    values = e.temps(len(operands[0]), e.call(collective.multiply, "G", name, *sources))
    for item, value in zip(operands[0], values, strict=True):
        e.out_raw(item, _CODES.get(d, "u4"), value)


def _tuple(e: Emitter, items: tuple[Operand, ...], code: str) -> str:
    return f"({','.join(e.use(item, code) for item in items)},)"


TABLE: dict[str, Row] = {
    "ldmatrix": Row(_load_matrix, Effect.WARP),
    "stmatrix": Row(_store_matrix, Effect.WARP, destinations=0),
    "movmatrix": Row(_move_matrix, Effect.WARP),
    "mma": Row(_multiply, Effect.WARP),
}
