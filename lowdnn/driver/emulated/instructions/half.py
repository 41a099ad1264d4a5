"""f16, bf16 and their pairs. PTX ISA manual, "Half Precision Floating Point Instructions".

ex2 and tanh are here for all types: f32 goes to the approximate functions.
"""

from __future__ import annotations

from collections.abc import Callable

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Row, code_of
from lowdnn.driver.emulated.instructions.floating import _approximate
from lowdnn.driver.emulated.parsing.ir import Instruction
from lowdnn.driver.emulated.values import half

HALVES = ("f16", "f16x2", "bf16", "bf16x2")


def _arithmetic(e: Emitter) -> None:
    m = e.modifiers()
    m.choice("rn")
    ftz, saturate, relu = m.flag("ftz"), m.flag("sat"), m.flag("relu")
    kind = m.type(*HALVES)
    m.done()
    operation = e.instruction.opcode
    key = f"{operation}_{kind}{'_ftz' * ftz}{'_sat' * saturate}{'_relu' * relu}"
    function = half.arithmetic(operation, kind, ftz=ftz, saturate=saturate, relu=relu)
    code = code_of(kind)
    e.out(e.instruction.operands[0], code, e.bound(key, function, *e.use_all(code)))


def _extremum(e: Emitter) -> None:
    m = e.modifiers()
    ftz, nan, sign = m.flag("ftz"), m.flag("NaN"), m.flag("xorsign")
    if sign:
        m.need("abs")
    kind = m.type(*HALVES)
    m.done()
    operation = e.instruction.opcode
    key = f"{operation}_{kind}{'_ftz' * ftz}{'_nan' * nan}{'_sign' * sign}"
    function = half.extremum(operation, kind, ftz=ftz, propagate_nan=nan, xorsign=sign)
    code = code_of(kind)
    e.out(e.instruction.operands[0], code, e.bound(key, function, *e.use_all(code)))


def _sign(function: Callable[..., object]) -> Callable[[Emitter], None]:
    def emit(e: Emitter) -> None:
        m = e.modifiers()
        ftz = m.flag("ftz")
        kind = m.type(*HALVES)
        m.done()
        value = e.use(e.instruction.operands[1], code_of(kind))
        if ftz:
            value = e.bound(f"flush_{kind}", half.flusher(kind), value)
        e.out(e.instruction.operands[0], code_of(kind), e.call(function, value))

    return emit


def _approximate_half(e: Emitter, instruction: Instruction) -> None:
    if instruction.modifiers[-1] not in HALVES:
        _approximate(e, instruction)
        return
    m = e.modifiers()
    m.need("approx")
    ftz = m.flag("ftz")
    kind = m.type(*HALVES)
    m.done()
    key = f"{instruction.opcode}_{kind}{'_ftz' * ftz}"
    function = half.arithmetic(instruction.opcode, kind, ftz=ftz)
    e.out(instruction.operands[0], code_of(kind), e.bound(key, function, *e.use_all(code_of(kind))))


#: Half-precision forms of the opcodes that other types have too.
EMITTERS: dict[str, Callable[[Emitter], None]] = {
    "add": _arithmetic,
    "sub": _arithmetic,
    "mul": _arithmetic,
    "fma": _arithmetic,
    "abs": _sign(half.absolute),
    "neg": _sign(half.negated),
    "min": _extremum,
    "max": _extremum,
}

TABLE: dict[str, Row] = {"ex2": Row(_approximate_half), "tanh": Row(_approximate_half)}
