"""atom and red. PTX ISA manual, "atom", "red". Lanes that meet at one address take their turns in lane order.

f32 sums flush subnormals in global memory and keep them in shared memory, as the manual says.
"""

from __future__ import annotations

from lowdnn.driver.emulated.checking.epochs import GPU
from lowdnn.driver.emulated.generating.generator import SIZES, Emitter
from lowdnn.driver.emulated.instructions.core import Effect, Row, code_of
from lowdnn.driver.emulated.instructions.memory import address_of, drop_hints, kind_name, scope_of, space_of
from lowdnn.driver.emulated.memory.access import atomic
from lowdnn.driver.emulated.parsing.ir import Instruction, Mem, Operand, Vec
from lowdnn.driver.emulated.values import atomic as values
from lowdnn.status import NotSupportedError

_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_KINDS = ("b16", "b32", "b64", "u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def _atomic(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    space = space_of(m)
    scope = scope_of(m) or GPU
    hint = drop_hints(m)
    count = {"v2": 2, "v4": 4, "v8": 8}.get(m.choice("v2", "v4", "v8"), 1)
    operation = m.need(*_OPERATIONS)
    m.flag("noftz")
    kind = m.type(*_KINDS)
    m.done()
    code = code_of(kind)
    try:
        updates = (values.updater(operation, kind), values.updater(operation, kind, ftz=True))
    except NotSupportedError as cause:
        raise e.refuse(str(cause)) from cause
    name = e.object(f"F_atom_{operation}_{kind}", updates)
    returns = instruction.opcode == "atom"
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
    for place in range(count):
        parts = [s.items[place] if count > 1 and isinstance(s, Vec) else s for s in sources]
        arguments = [repr(space), base, str(offset + place * SIZES[code]), kind_name(e, code, 1, scope), name]
        call = e.call(atomic, "G", *arguments, *(e.use(part, code) for part in parts))
        if returns:
            e.out(targets[place], code, call)
        else:
            e.do(call)


TABLE: dict[str, Row] = {
    "atom": Row(_atomic, Effect.ACTION),
    "red": Row(_atomic, Effect.ACTION, destinations=0),
}
