"""f32 and f64. PTX ISA manual, "Floating Point Instructions"."""

from __future__ import annotations

from collections.abc import Callable

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Modifiers, Row, code_of
from lowdnn.driver.emulated.parsing.ir import Instruction
from lowdnn.driver.emulated.values import approximate, floating

ROUNDINGS = ("rn", "rz", "rm", "rp")
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def _arithmetic(e: Emitter) -> None:
    """add, sub, mul, fma (mad), and the rounded forms of div, rcp and sqrt."""
    m = e.modifiers()
    rounding = m.choice(*ROUNDINGS, default="rn")
    ftz, saturate = m.flag("ftz"), m.flag("sat")
    kind = m.type("f32", "f64")
    m.done()
    operation = {"mad": "fma"}.get(e.instruction.opcode, e.instruction.opcode)
    code = code_of(kind)
    operands = e.use_all(code)
    plain = rounding == "rn" and not ftz and not saturate
    if plain and operation in _OPERATORS:
        value = f"{operands[0]}{_OPERATORS[operation]}{operands[1]}"
    else:
        key = f"{operation}_{kind}_{rounding}{'_ftz' * ftz}{'_sat' * saturate}"
        value = e.bound(key, floating.arithmetic(operation, kind, rounding, ftz, saturate), *operands)
    e.out(e.instruction.operands[0], code, value)


def _divide(e: Emitter) -> None:
    left = Modifiers(e.instruction).left
    if "approx" not in left and "full" not in left:
        _arithmetic(e)
        return
    m = e.modifiers()
    form = m.need("approx", "full")
    ftz = m.flag("ftz")
    m.type("f32")
    m.done()
    operands = e.use_all("f4")
    if form == "approx":
        value = e.bound(f"div_approx{'_ftz' * ftz}", approximate.function("div", ftz), *operands)
    elif ftz:
        flushed = [e.temp(e.call(floating.flush, operand)) for operand in operands]
        value = e.call(floating.flush, e.call(approximate.div_full, *flushed))
    else:
        value = e.call(approximate.div_full, *operands)
    e.out(e.instruction.operands[0], "f4", value)


def _root(e: Emitter, instruction: Instruction) -> None:
    """rcp, sqrt, rsqrt: rounded or approximate."""
    if "approx" not in instruction.modifiers:
        if instruction.opcode == "rsqrt":
            raise e.refuse("only .approx forms exist")
        _arithmetic(e)
        return
    _approximate(e, instruction)


def _approximate(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.need("approx")
    ftz = m.flag("ftz")
    kind = m.type("f32", "f64")
    m.done()
    name = instruction.opcode
    if kind == "f64":
        if name not in ("rcp", "rsqrt"):
            raise e.refuse("not for .f64")
        function = approximate.rcp_f64 if name == "rcp" else approximate.rsqrt_f64
        e.out(instruction.operands[0], "f8", e.call(function, e.use(instruction.operands[1], "f8")))
        return
    value = e.bound(f"{name}_approx{'_ftz' * ftz}", approximate.function(name, ftz), *e.use_all("f4"))
    e.out(instruction.operands[0], "f4", value)


def _sign(form: str) -> Callable[[Emitter], None]:
    def emit(e: Emitter) -> None:
        m = e.modifiers()
        ftz = m.flag("ftz")
        code = code_of(m.type("f32", "f64"))
        m.done()
        operand = e.use(e.instruction.operands[1], code)
        value = form.format(a=e.call(floating.flush, operand) if ftz else operand)
        e.out(e.instruction.operands[0], code, value)

    return emit


def _extremum(e: Emitter) -> None:
    m = e.modifiers()
    ftz, nan = m.flag("ftz"), m.flag("NaN")
    exchanged = m.flag("xorsign")
    if exchanged:
        m.need("abs")
    magnitudes = not exchanged and m.flag("abs")
    code = code_of(m.type("f32", "f64"))
    m.done()
    low = e.instruction.opcode == "min"
    if exchanged:
        function = floating.minimum_xorsign_abs if low else floating.maximum_xorsign_abs
    else:
        function = floating.minimum if low else floating.maximum
    operands = [e.temp(e.call(floating.flush, a)) if ftz else a for a in e.use_all(code)]
    operands = [e.temp(f"abs({a})") if magnitudes else a for a in operands]
    value = operands[0]
    for other in operands[1:]:
        value = e.call(function, value, other, str(nan))
    e.out(e.instruction.operands[0], code, value)


def _copy_sign(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    code = code_of(m.type("f32", "f64"))
    m.done()
    e.out(instruction.operands[0], code, e.call(floating.copy_sign, *e.use_all(code)))


def _property(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    name = m.need("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    code = code_of(m.type("f32", "f64"))
    m.done()
    e.out(
        instruction.operands[0], "p", e.call(floating.property_test, e.use(instruction.operands[1], code), repr(name))
    )


#: f32 and f64 forms of the opcodes that integers have too.
EMITTERS: dict[str, Callable[[Emitter], None]] = {
    "add": _arithmetic,
    "sub": _arithmetic,
    "mul": _arithmetic,
    "mad": _arithmetic,
    "fma": _arithmetic,
    "div": _divide,
    "abs": _sign("abs({a})"),
    "neg": _sign("-{a}"),
    "min": _extremum,
    "max": _extremum,
}

TABLE: dict[str, Row] = {
    "rcp": Row(_root),
    "sqrt": Row(_root),
    "rsqrt": Row(_root),
    "sin": Row(_approximate),
    "cos": Row(_approximate),
    "lg2": Row(_approximate),
    "copysign": Row(_copy_sign),
    "testp": Row(_property),
}
