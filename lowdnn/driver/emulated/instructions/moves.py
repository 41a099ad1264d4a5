"""Moves, conversions, comparisons and selections. PTX ISA manual, "Data Movement and Conversion", "Comparison and
Selection"."""

from __future__ import annotations

from lowdnn.driver.emulated.generating.generator import SIZES, Emitter
from lowdnn.driver.emulated.generating.rows import Row, code_of
from lowdnn.driver.emulated.memory.arena import LOCAL_WINDOW, SHARED_WINDOW
from lowdnn.driver.emulated.parsing.ir import TYPES, Instruction, Operand, Pair, Reg, Vec
from lowdnn.driver.emulated.values import convert, floating, half, wide
from lowdnn.status import NotSupportedError

_COMPARISONS = (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "lo",
    "ls",
    "hi",
    "hs",
    "equ",
    "neu",
    "ltu",
    "leu",
    "gtu",
    "geu",
    "num",
    "nan",
)
_INTEGER_COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_FLOAT_OPERATORS = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "neu": "!="}
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_CVT_TYPES = (*convert.INTEGERS, "f16", "bf16", "f32", "f64", "tf32", "f16x2", "bf16x2", "e4m3x2", "e5m2x2")
_CVT_CODES = {"e4m3x2": "u2", "e5m2x2": "u2"}
_CVT_ROUNDINGS = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": 0, "const": 0, "param": 0}
_ALIASES = {"shared::cta": "shared", "shared::cluster": "shared", "param::entry": "param"}


def _mov(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    code = code_of(m.type())
    m.done()
    target, source = instruction.operands
    if isinstance(target, Vec):
        _unpack(e, target, source, code)
    elif isinstance(source, Vec):
        _pack(e, target, source, code)
    else:
        e.alias(target, code, source)


def _unpack(e: Emitter, target: Vec, source: Operand, code: str) -> None:
    """mov.b64 {lo, hi}, d: element 0 is the low part."""
    if code == "w16":
        halves = e.temps(2, e.call(wide.split, e.use(source, code)))
        for item, value in zip(target.items, halves, strict=True):
            e.out(item, "u8", value)
        return
    whole = e.use(source, _unsigned(code))
    size = SIZES[code] // len(target.items)
    part = f"u{size}"
    values = []
    for place in range(len(target.items)):
        shifted = f"({whole}>>{e.constant(8 * size * place, _unsigned(code))})" if place else whole
        values.append(e.temp(f"{shifted}.astype({part})"))
    for item, value in zip(target.items, values, strict=True):
        e.out(item, part, value)


def _pack(e: Emitter, target: Operand, source: Vec, code: str) -> None:
    if code == "w16":
        e.out(target, code, e.call(wide.joined, *(e.use(item, "u8") for item in source.items)))
        return
    whole = _unsigned(code)
    size = SIZES[code] // len(source.items)
    parts = []
    for place, item in enumerate(source.items):
        part = f"{e.use(item, f'u{size}')}.astype({whole})"
        parts.append(f"({part}<<{e.constant(8 * size * place, whole)})" if place else part)
    e.out(target, whole, "|".join(parts))


def _unsigned(code: str) -> str:
    return f"u{SIZES[code]}"


def _cvt(e: Emitter, instruction: Instruction) -> None:
    if instruction.modifiers[:1] == ("pack",):
        _cvt_pack(e, instruction)
        return
    m = e.modifiers()
    rounding = m.choice(*_CVT_ROUNDINGS) or None
    flags = {
        name: m.flag(word)
        for name, word in (("saturate", "sat"), ("ftz", "ftz"), ("relu", "relu"), ("satfinite", "satfinite"))
    }
    kinds = [name for name in m.left if name in _CVT_TYPES]
    if len(kinds) != 2 or m.left != kinds:
        raise m.refusal("has modifiers or types that are not supported")
    target, source = kinds
    key = "_".join(("cvt", target, source, rounding or "", *(name for name, on in flags.items() if on)))
    try:
        function = convert.converter(source, target, rounding, **flags)
    except NotSupportedError as cause:
        raise e.refuse(str(cause)) from cause
    arguments = [_narrowed(e, operand, source) for operand in instruction.operands[1:]]
    e.out(instruction.operands[0], _cvt_code(target), e.bound(key, function, *arguments))


def _cvt_code(kind: str) -> str:
    return _CVT_CODES.get(kind) or code_of(kind)


def _narrowed(e: Emitter, operand: Operand, kind: str) -> str:
    """The source of cvt may be a wider register, of which the low part counts."""
    return e.use(operand, _cvt_code(kind))


def _cvt_pack(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    m.need("pack")
    m.need("sat")
    kinds = list(m.left)
    if len(kinds) < 2 or kinds[1] != "s32" or kinds[2:] not in ([], ["b32"]):
        raise m.refusal("has types that are not supported")
    values = [*e.use_all("i4", 1, 2), *e.use_all("u4", 3)]
    e.out(instruction.operands[0], "u4", e.call(convert.pack_saturated, repr(kinds[0]), *values))


def _comparison(e: Emitter, operation: str, kind: str, ftz: bool, a: Operand, b: Operand) -> str:
    """An expression for ``a <operation> b``."""
    code = code_of(kind)
    left, right = e.use(a, code), e.use(b, code)
    if kind in _HALVES:
        return e.bound(f"cmp_{operation}_{kind}{'_ftz' * ftz}", half.comparison(operation, kind, ftz), left, right)
    if code[0] == "f":
        if ftz:
            left, right = e.call(floating.flush, left), e.call(floating.flush, right)
        if operation in _FLOAT_OPERATORS:
            return f"{left}{_FLOAT_OPERATORS[operation]}{right}"
        return e.bound(f"cmp_{operation}", floating.comparison(operation), left, right)
    if operation not in _INTEGER_COMPARISONS:
        raise e.refuse(f"comparison .{operation} of integers")
    return f"{left}{_INTEGER_COMPARISONS[operation]}{right}"


def _setp(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    operation, combine, ftz = m.need(*_COMPARISONS), m.choice("and", "or", "xor"), m.flag("ftz")
    kind = m.type()
    m.done()
    target, a, b = instruction.operands[:3]
    value = e.temp(_comparison(e, operation, kind, ftz, a, b))
    if kind.endswith("x2"):
        _set_pair(e, target, value)
        return
    results = [value, f"~{value}"]
    if combine:
        other = e.use(instruction.operands[3], "p")
        results = [f"({result}){_BOOL[combine]}{other}" for result in results]
    if isinstance(target, Pair):
        first, second = e.temp(results[0]), e.temp(results[1])
        e.out(target.first, "p", first)
        e.out(target.second, "p", second)
    else:
        e.out(target, "p", results[0])


_BOOL = {"and": "&", "or": "|", "xor": "^"}


def _set_pair(e: Emitter, target: Operand, value: str) -> None:
    if not isinstance(target, Pair):
        raise e.refuse("a comparison of pairs needs two destinations")
    e.out(target.first, "p", f"{value}[...,0]")
    e.out(target.second, "p", f"{value}[...,1]")


def _set(e: Emitter, instruction: Instruction) -> None:
    """set.CmpOp.dtype.stype: all ones or 1.0 where true."""
    m = e.modifiers()
    operation, combine, ftz = m.need(*_COMPARISONS), m.choice("and", "or", "xor"), m.flag("ftz")
    target, source = m.type("u32", "s32", "f32", "u16", "s16"), m.type()
    m.done()
    if source.endswith("x2"):
        raise e.refuse("not for pairs")
    value = f"({_comparison(e, operation, source, ftz, *instruction.operands[1:3])})"
    if combine:
        value = f"({value}{_BOOL[combine]}{e.use(instruction.operands[3], 'p')})"
    code = code_of(target)
    result = f"{value}.astype(f4)" if code == "f4" else f"(-{value}.astype(i{SIZES[code]})).view({code})"
    e.out(instruction.operands[0], code, result)


def _selp(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    code = code_of(m.type())
    m.done()
    target, a, b, guard = instruction.operands
    e.out(target, code, f"where({e.use(guard, 'p')},{e.use(a, code)},{e.use(b, code)})")


def _slct(e: Emitter, instruction: Instruction) -> None:
    """a where c >= 0, else b; NaN gives b."""
    m = e.modifiers()
    ftz = m.flag("ftz")
    code, kind = code_of(m.type()), m.type("s32", "f32")
    m.done()
    target, a, b, c = instruction.operands
    sign = e.use(c, code_of(kind))
    if ftz:
        sign = e.call(floating.flush, sign)
    zero = e.constant(0, code_of(kind))
    e.out(target, code, f"where({sign}>={zero},{e.use(a, code)},{e.use(b, code)})")


def _cvta(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    to_space = m.flag("to")
    space = next((name for name in m.left if _ALIASES.get(name, name) in _WINDOWS), "")
    if not space:
        raise m.refusal("has a state space that is not supported")
    m.left.remove(space)
    code = code_of(m.type("u64"))
    m.done()
    window = _WINDOWS[_ALIASES.get(space, space)]
    target, source = instruction.operands
    if not window and isinstance(source, Reg):
        e.alias(target, code, source)
    else:
        e.out(target, code, f"{e.use(source, code)}{'-' if to_space else '+'}{e.constant(window, code)}")


def _isspacep(e: Emitter, instruction: Instruction) -> None:
    m = e.modifiers()
    space = m.left.pop() if m.left else ""
    m.done()
    name = "cluster" if space == "shared::cluster" else _ALIASES.get(space, space)
    if name != "cluster" and name not in _WINDOWS:
        raise e.refuse(f"state space {space!r}")
    e.out(instruction.operands[0], "p", f"in_space(G,{e.use(instruction.operands[1], 'u8')},{name!r})")


def _implicit(e: Emitter, instruction: Instruction) -> None:
    """``implicit-def``: the compiler declares that the value does not matter."""
    target = instruction.operands[0]
    code = TYPES[e.register_kind(target)][0]
    e.out(target, code, f"poison(np.dtype({code}))")


TABLE: dict[str, Row] = {
    "mov": Row(_mov),
    "cvt": Row(_cvt),
    "setp": Row(_setp),
    "set": Row(_set),
    "selp": Row(_selp),
    "slct": Row(_slct),
    "cvta": Row(_cvta),
    "isspacep": Row(_isspacep),
    "implicit": Row(_implicit),
}
