"""atom and red. PTX ISA manual, "atom", "red". Lanes with the same address are applied in lane order.

f32 sums flush subnormals in global memory and keep them in shared memory, as the manual says.
"""

from __future__ import annotations

from lowdnn.driver.emulated.checking.epochs import GPU
from lowdnn.driver.emulated.generating.generator import SIZES, Emitter
from lowdnn.driver.emulated.generating.rows import Effect, Modifiers, Row, code_of
from lowdnn.driver.emulated.instructions.memory import address_of, drop_hints, kind_name, scope_of, space_of
from lowdnn.driver.emulated.memory.access import atomic
from lowdnn.driver.emulated.parsing.ir import Instruction, Mem, Operand, Vec
from lowdnn.driver.emulated.running import race_hooks
from lowdnn.driver.emulated.values import atomic as values
from lowdnn.status import NotSupportedError

_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_ORDERED = ("u32", "s32", "u64", "s64")
_BITS = ("b32", "b64")
_KINDS = {
    "add": ("u32", "s32", "u64", "f32", "f64", *_HALVES),
    "min": _ORDERED, "max": _ORDERED,
    "and": _BITS, "or": _BITS, "xor": _BITS,
    "exch": (*_BITS, "b128"), "cas": ("b16", *_BITS, "b128"),
    "inc": ("u32",), "dec": ("u32",),
}  # fmt: skip
#: Operations that return the old value only.
_WITHOUT_RED = ("exch", "cas")
#: Vectors, in global memory: their types with the lengths.
_VECTOR_KINDS = {"f16": (2, 4, 8), "bf16": (2, 4, 8), "f16x2": (2, 4), "bf16x2": (2, 4), "f32": (2, 4)}


def _atomic(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    space = space_of(m)
    scope = scope_of(m) or GPU
    hint = drop_hints(m)
    count = {"v2": 2, "v4": 4, "v8": 8}.get(m.choice("v2", "v4", "v8"), 1)
    operation = m.need(*_KINDS)
    kind = _type(m, operation, count, space)
    m.done()
    code = code_of(kind)
    try:
        updates = (values.updater(operation, kind), values.updater(operation, kind, ftz=True))
    except NotSupportedError as cause:
        raise e.refuse(str(cause)) from cause
    name = e.object(f"F_atom_{operation}_{kind}", updates)
    returns = instruction.opcode == "atom"
    if not returns and operation in _WITHOUT_RED:
        raise e.refuse(f"there is no red.{operation}")
    operands = list(instruction.operands[1 if returns else 0 :])
    if hint:
        operands.pop()
    address, *sources = operands
    if not isinstance(address, Mem):
        raise e.refuse("expected an address in brackets")
    base, offset = address_of(e, address)
    targets: tuple[Operand, ...] = (instruction.operands[0],)
    if count > 1 and isinstance(targets[0], Vec):
        targets = targets[0].items
    orders = set(instruction.modifiers)
    if orders & {"release", "acq_rel"}:
        e.do(e.call(race_hooks.fence, "G", str(scope)))
    for place in range(count):
        parts = [s.items[place] if count > 1 and isinstance(s, Vec) else s for s in sources]
        arguments = [repr(space), base, str(offset + place * SIZES[code]), kind_name(e, code, 1, scope)]
        arguments += [str(SIZES[code] * (count if place == 0 else 1)), name]
        call = e.call(atomic, "G", *arguments, *(e.use(part, code) for part in parts))
        if returns:
            e.out(targets[place], code, call)
        else:
            e.do(call)
    if orders & {"acquire", "acq_rel"}:
        e.do(e.call(race_hooks.fence, "G", str(scope)))


def _type(m: Modifiers, operation: str, count: int, space: str) -> str:
    """Takes the type, one that the operation has, for single values or vectors."""
    noftz = m.flag("noftz")
    if count == 1:
        kind = m.type(*_KINDS[operation])
    else:
        kind = m.type(*_VECTOR_KINDS)
        allowed = operation == "add" or (operation in ("min", "max") and kind in _HALVES)
        if not allowed or count not in _VECTOR_KINDS[kind] or space not in ("global", "generic"):
            raise m.refusal("is no vector form")
    if kind in _HALVES and not noftz:
        raise m.refusal("needs .noftz")
    return kind


TABLE: dict[str, Row] = {
    "atom": Row(_atomic, Effect.ACTION),
    "red": Row(_atomic, Effect.ACTION, destinations=0),
}
