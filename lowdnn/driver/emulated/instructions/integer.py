"""Integer arithmetic, bit fields, logic and shifts. PTX ISA manual, "Integer Arithmetic", "Logic and Shift",
"Extended-Precision"."""

from __future__ import annotations

from collections.abc import Callable

from lowdnn.driver.emulated.generating.generator import Emitter
from lowdnn.driver.emulated.generating.rows import Row, code_of, signed
from lowdnn.driver.emulated.parsing.ir import Imm, Instruction, Pair
from lowdnn.driver.emulated.values import bitfield, integer

_NORMAL = ("u16", "s16", "u32", "s32", "u64", "s64")
_PACKED = ("u16x2", "s16x2")
_WIDE = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}


def _add(e: Emitter) -> None:
    _sum(e, "+", integer.add_sat)


def _sub(e: Emitter) -> None:
    _sum(e, "-", integer.sub_sat)


def _sum(e: Emitter, operator: str, saturating: Callable[..., object]) -> None:
    m = e.modifiers()
    saturate, carry = m.flag("sat"), m.flag("cc")
    kind = m.type(*_NORMAL, *_PACKED)
    m.done()
    if kind in _PACKED:
        _packed_sum(e, operator)
        return
    code = code_of(kind)
    if carry:
        _with_carry(e, operator, code, e.constant(False, "p"))
        return
    a, b = e.use_all(code)
    e.out(e.instruction.operands[0], code, e.call(saturating, a, b) if saturate else f"{a}{operator}{b}")


def _packed_sum(e: Emitter, operator: str) -> None:
    if operator == "-":
        raise e.refuse("not for packed integers")
    e.out(e.instruction.operands[0], "u4", e.call(integer.add_x2, *e.use_all("u4")))


def _with_carry(e: Emitter, operator: str, code: str, carry_in: str) -> None:
    code = code.replace("i", "u")
    function = integer.add_carry if operator == "+" else integer.sub_borrow
    value, flag = e.temps(2, e.call(function, *e.use_all(code), carry_in))
    e.out(e.instruction.operands[0], code, value)
    e.set_carry(flag)


def _carried(e: Emitter, _: Instruction) -> None:
    m = e.modifiers()
    sets = m.flag("cc")
    code = code_of(m.type("u32", "s32", "u64", "s64")).replace("i", "u")
    m.done()
    operator = "+" if e.instruction.opcode == "addc" else "-"
    if sets:
        _with_carry(e, operator, code, e.carry())
        return
    a, b = e.use_all(code)
    e.out(e.instruction.operands[0], code, f"{a}{operator}{b}{operator}{e.carry()}.astype({code})")


def _mul(e: Emitter) -> None:
    _product(e, adds=False)


def _mad(e: Emitter) -> None:
    _product(e, adds=True)


def _product(e: Emitter, adds: bool) -> None:
    m = e.modifiers()
    part, saturate, carry = m.need("lo", "hi", "wide"), m.flag("sat"), m.flag("cc")
    code = code_of(m.type(*_NORMAL))
    m.done()
    operands = e.instruction.operands
    a, b = e.use(operands[1], code), e.use(operands[2], code)
    if part == "wide":
        result = _WIDE[code]
        product = f"{a}.astype({result})*{b}"
    else:
        result = code
        product = f"{a}*{b}" if part == "lo" else e.call(integer.mul_hi, a, b)
    if adds and carry:
        _mad_carry(e, product, code)
        return
    if saturate:
        product = e.call(integer.mad_hi_sat, a, b, e.use(operands[3], code))
    elif adds:
        product = f"{product}+{e.use(operands[3], result)}"
    e.out(operands[0], result, product)


def _mad_carry(e: Emitter, product: str, code: str) -> None:
    unsigned = code.replace("i", "u")
    whole = e.temp(f"({product}).view({unsigned})")
    addend = e.use(e.instruction.operands[3], unsigned)
    value, flag = e.temps(2, e.call(integer.add_carry, whole, addend, e.constant(False, "p")))
    e.out(e.instruction.operands[0], unsigned, value)
    e.set_carry(flag)


def _madc(e: Emitter, _: Instruction) -> None:
    m = e.modifiers()
    part, sets = m.need("lo", "hi"), m.flag("cc")
    code = code_of(m.type("u32", "s32", "u64", "s64"))
    m.done()
    operands = e.instruction.operands
    a, b = e.use(operands[1], code), e.use(operands[2], code)
    unsigned = code.replace("i", "u")
    product = f"{a}*{b}" if part == "lo" else e.call(integer.mul_hi, a, b)
    whole = e.temp(f"({product}).view({unsigned})")
    value, flag = e.temps(2, e.call(integer.add_carry, whole, e.use(operands[3], unsigned), e.carry()))
    e.out(operands[0], unsigned, value)
    if sets:
        e.set_carry(flag)


def _mul24(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    part, saturate = m.need("lo", "hi"), m.flag("sat")
    code = code_of(m.type("u32", "s32"))
    m.done()
    operands = e.use_all(code)
    a, b = operands[:2]
    if saturate:
        value = e.call(integer.mad24_hi_sat, *operands)
    else:
        value = e.call(integer.mul24_lo if part == "lo" else integer.mul24_hi, a, b)
        if instruction.opcode == "mad24":
            value = f"{value}+{operands[2]}"
    e.out(instruction.operands[0], code, value)


def _same_type(function: Callable[..., object], *kinds: str) -> Callable[[Emitter], None]:
    """d = function(a, b, ...) with all of one type."""

    def emit(e: Emitter) -> None:
        m = e.modifiers()
        code = code_of(m.type(*kinds))
        m.done()
        e.out(e.instruction.operands[0], code, e.call(function, *e.use_all(code)))

    return emit


def _negate(e: Emitter) -> None:
    _unary(e, "-{a}")


def _absolute(e: Emitter) -> None:
    _unary(e, "abs({a})")


def _unary(e: Emitter, form: str) -> None:
    m = e.modifiers()
    code = code_of(m.type("s16", "s32", "s64"))
    m.done()
    e.out(e.instruction.operands[0], code, form.format(a=e.use(e.instruction.operands[1], code)))


def _extremum(ufunc: str, packed: Callable[..., object]) -> Callable[[Emitter], None]:
    def emit(e: Emitter) -> None:
        m = e.modifiers()
        relu = m.flag("relu")
        kind = m.type(*_NORMAL, *_PACKED)
        m.done()
        if kind in _PACKED:
            value = e.call(packed, *e.use_all("u4"), str(signed(kind)), str(relu))
        else:
            value = f"{ufunc}({','.join(e.use_all(code_of(kind)))})"
            value = f"maximum({value},{e.constant(0, code_of(kind))})" if relu else value
        e.out(e.instruction.operands[0], code_of(kind), value)

    return emit


# -- bits -----------------------------------------------------------------------------------------------------------
def _logic(operator: str) -> Row:
    def emit(e: Emitter, instruction: Instruction) -> None:
        code = _bits_code(e)
        a, b = e.use_all(code)
        e.out(instruction.operands[0], code, f"{a}{operator}{b}")

    return Row(emit)


def _not(e: Emitter, instruction: Instruction) -> None:
    code = _bits_code(e)
    e.out(instruction.operands[0], code, f"~{e.use(instruction.operands[1], code)}")


def _cnot(e: Emitter, instruction: Instruction) -> None:
    code = _bits_code(e)
    e.out(
        instruction.operands[0], code, f"({e.use(instruction.operands[1], code)}=={e.constant(0, code)}).astype({code})"
    )


def _bits_code(e: Emitter) -> str:
    m = e.modifiers()
    code = code_of(m.type("pred", "b16", "b32", "b64"))
    m.done()
    return code


def _shift(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    code = code_of(m.type("b16", "b32", "b64", *_NORMAL))
    m.done()
    left = instruction.opcode == "shl"
    value = e.use(instruction.operands[1], code)
    amount = instruction.operands[2]
    if isinstance(amount, Imm):
        width = 8 * int(code[1])
        count = amount.value & 0xFFFFFFFF
        if count >= width:
            result = (
                f"{value}>>{e.constant(width - 1, code)}"
                if code[0] == "i" and not left
                else f"{value}&{e.constant(0, code)}"
            )
        else:
            result = f"{value}{'<<' if left else '>>'}{e.constant(count, code)}"
    else:
        result = e.call(integer.shl if left else integer.shr, value, e.use(amount, "u4"))
    e.out(instruction.operands[0], code, result)


def _funnel(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    direction, mode = m.need("l", "r"), m.need("clamp", "wrap")
    m.type("b32")
    m.done()
    function = integer.funnel_shift_left if direction == "l" else integer.funnel_shift_right
    e.out(instruction.operands[0], "u4", e.call(function, *e.use_all("u4"), str(mode == "wrap")))


def _extract(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    code = code_of(m.type("u32", "s32", "u64", "s64"))
    m.done()
    value = e.use(instruction.operands[1], code)
    e.out(instruction.operands[0], code, e.call(bitfield.bit_field_extract, value, *e.use_all("u4", 2)))


def _insert(e: Emitter, instruction: Instruction) -> None:
    code = _bits_code(e)
    values = e.use_all(code, 1, 2)
    e.out(instruction.operands[0], code, e.call(bitfield.bit_field_insert, *values, *e.use_all("u4", 3)))


def _find_leading(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    shift = m.flag("shiftamt")
    code = code_of(m.type("u32", "s32", "u64", "s64"))
    m.done()
    value = e.use(instruction.operands[1], code)
    e.out(instruction.operands[0], "u4", e.call(bitfield.find_leading_bit, value, str(shift)))


def _count(function: Callable[..., object]) -> Row:
    def emit(e: Emitter, instruction: Instruction) -> None:
        code = _bits_code(e)
        e.out(instruction.operands[0], "u4", e.call(function, e.use(instruction.operands[1], code)))

    return Row(emit)


def _reverse(e: Emitter, instruction: Instruction) -> None:
    code = _bits_code(e)
    e.out(instruction.operands[0], code, e.call(bitfield.reverse_bits, e.use(instruction.operands[1], code)))


def _permute(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.type("b32")
    mode = m.choice("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    m.done()
    e.out(instruction.operands[0], "u4", e.call(bitfield.permute_bytes, *e.use_all("u4"), repr(mode)))


def _lookup(e: Emitter, instruction: Instruction) -> None:
    """lop3, and lop3.or / lop3.and d|p: the predicate is (d != 0) or/and a predicate operand."""
    m = e.modifiers()
    combine = m.choice("or", "and")
    m.type("b32")
    m.done()
    target, table = instruction.operands[0], instruction.operands[4]
    if not isinstance(table, Imm):
        raise e.refuse("the table must be a number")
    value = e.temp(e.call(bitfield.lookup_3, *e.use_all("u4", 1, 3), str(table.value)))
    if not combine:
        e.out(target, "u4", value)
        return
    if not isinstance(target, Pair):
        raise e.refuse("needs two destinations")
    other = e.use(instruction.operands[5], "p")
    e.out(target.second, "p", f"({value}!={e.constant(0, 'u4')}){'|' if combine == 'or' else '&'}{other}")
    e.out(target.first, "u4", value)


def _dot(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    high = m.choice("lo", "hi") if instruction.opcode == "dp2a" else ""
    a_type, b_type = m.type("u32", "s32"), m.type("u32", "s32")
    m.done()
    code = "i4" if signed(a_type) or signed(b_type) else "u4"
    arguments = [*e.use_all("u4", 1, 2), e.use(instruction.operands[3], code), str(signed(a_type)), str(signed(b_type))]
    if high:
        arguments.append(str(high == "hi"))
    e.out(instruction.operands[0], code, e.call(integer.dp2a if high else integer.dp4a, *arguments))


def _sad(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    code = code_of(m.type(*_NORMAL))
    m.done()
    e.out(instruction.operands[0], code, e.call(integer.sad, *e.use_all(code)))


def _find_nth(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.type("b32")
    m.done()
    arguments = [*e.use_all("u4", 1, 2), e.use(instruction.operands[3], "i4")]
    e.out(instruction.operands[0], "u4", e.call(bitfield.find_nth_set, *arguments))


def _extend(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    wrap = m.need("wrap", "clamp") == "wrap"
    code = code_of(m.type("u32", "s32"))
    m.done()
    value, bits = e.use(instruction.operands[1], code), e.use(instruction.operands[2], "u4")
    e.out(instruction.operands[0], code, e.call(bitfield.sign_or_zero_extend, value, bits, str(wrap)))


def _mask(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    wrap = m.need("wrap", "clamp") == "wrap"
    m.type("b32")
    m.done()
    e.out(instruction.operands[0], "u4", e.call(bitfield.bit_mask, *e.use_all("u4"), str(wrap)))


#: Integer forms of the opcodes that floats have too.
EMITTERS: dict[str, Callable[[Emitter], None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "mad": _mad,
    "div": _same_type(integer.div, *_NORMAL),
    "rem": _same_type(integer.rem, *_NORMAL),
    "abs": _absolute,
    "neg": _negate,
    "min": _extremum("minimum", integer.minimum_x2),
    "max": _extremum("maximum", integer.maximum_x2),
}

TABLE: dict[str, Row] = {
    "addc": Row(_carried),
    "subc": Row(_carried),
    "madc": Row(_madc),
    "mul24": Row(_mul24),
    "mad24": Row(_mul24),
    "and": _logic("&"),
    "or": _logic("|"),
    "xor": _logic("^"),
    "not": Row(_not),
    "cnot": Row(_cnot),
    "shl": Row(_shift),
    "shr": Row(_shift),
    "shf": Row(_funnel),
    "bfe": Row(_extract),
    "bfi": Row(_insert),
    "bfind": Row(_find_leading),
    "clz": _count(bitfield.count_leading_zeros),
    "popc": _count(bitfield.population_count),
    "brev": Row(_reverse),
    "prmt": Row(_permute),
    "lop3": Row(_lookup),
    "dp4a": Row(_dot),
    "dp2a": Row(_dot),
    "sad": Row(_sad),
    "fns": Row(_find_nth),
    "szext": Row(_extend),
    "bmsk": Row(_mask),
}
