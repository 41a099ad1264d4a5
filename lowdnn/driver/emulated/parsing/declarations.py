"""Declarations: variables of every state space with their initial values, and parameter lists."""

from __future__ import annotations

import re
import struct

from lowdnn.driver.emulated.faults import unsupported
from lowdnn.driver.emulated.parsing.ir import TYPES, Imm, Variable
from lowdnn.driver.emulated.parsing.tokens import Tokens, literal

#: Directives that open a declaration.
SPACES = frozenset({".global", ".const", ".shared", ".local", ".param"})


def variables(t: Tokens, suffix: str) -> list[Variable]:
    """``.space [.align n] [.vN] .type name[dims] [= init] {, name...};``"""
    space, align, vector, kind = _declaration_head(t)
    found = []
    while True:
        found.append(_declarator(t, space, align, vector, kind, suffix))
        if not t.accept(","):
            break
    t.expect(";")
    return found


def parameter_list(t: Tokens) -> list[Variable]:
    t.expect("(")
    parameters: list[Variable] = []
    while not t.accept(")"):
        if t.peek() == ".reg":
            raise unsupported(".reg parameters of functions", t.line)
        parameters.append(_parameter(t))
        t.accept(",")
    return parameters


def _declaration_head(t: Tokens) -> tuple[str, int | None, int, str]:
    space = t.next()[1:].split("::")[0]
    align: int | None = None
    vector = 1
    while True:
        token = t.next()
        if token == ".align":
            align = t.integer()
        elif token in (".v2", ".v4"):
            vector = int(token[2:])
        elif token == ".attribute":
            t.skip_past(")")
        elif token == ".ptr":
            continue
        elif token[1:] in TYPES:
            return space, align, vector, token[1:]
        else:
            raise unsupported(f"{token!r} in a .{space} declaration", t.token_lines[t.at - 1])


def _declarator(t: Tokens, space: str, align: int | None, vector: int, kind: str, suffix: str) -> Variable:
    line = t.line
    name = t.next()
    element = TYPES[kind][1] * vector
    count: int | None = 1
    while t.accept("["):
        if t.accept("]"):
            count = None
            continue
        extent = t.integer()
        t.expect("]")
        count = extent if count is None else count * extent
    initial, symbols = _initialiser(t, kind) if t.accept("=") else (None, ())
    if count is None and initial is not None:
        count = -(-len(initial) // element)
    size = None if count is None else count * element
    if initial is not None and size is not None:
        initial = initial.ljust(size, b"\0")
    return Variable(name + suffix, space, align or element, size, kind, initial, symbols, line)


def _initialiser(t: Tokens, kind: str) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    data = bytearray()
    symbols: list[tuple[int, str]] = []
    depth = 0
    while True:
        token = t.peek()
        if token == "{":
            depth += 1
            t.next()
        elif token == "}":
            depth -= 1
            t.next()
        elif token == "," and depth:
            t.next()
        elif token in (";", ","):
            return bytes(data), tuple(symbols)
        else:
            _initial_value(t, kind, data, symbols)


def _initial_value(t: Tokens, kind: str, data: bytearray, symbols: list[tuple[int, str]]) -> None:
    code, size = TYPES[kind]
    token = t.peek()
    if re.match(r"[A-Za-z_$%]", token):
        name = t.next()
        if t.accept("("):
            name = t.next()
            t.expect(")")
        offset = t.integer() if t.accept("+") else 0
        symbols.append((len(data), name))
        data += offset.to_bytes(8, "little")
        return
    negative = t.accept("-")
    number = literal(t.next(), t.line)
    if code[0] == "f":
        data += _float_bits(number, code, negative)
    else:
        value = -number.value if negative else number.value
        data += (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _parameter(t: Tokens) -> Variable:
    t.expect(".param")
    align: int | None = None
    kind = ""
    while t.peek().startswith("."):
        token = t.next()
        if token == ".align":
            value = t.integer()
            align = value if not kind else align
        elif token[1:] in TYPES:
            kind = token[1:]
        elif token not in (".ptr", ".global", ".const", ".shared", ".local"):
            raise unsupported(f"{token!r} in a parameter", t.token_lines[t.at - 1])
    return _declarator(t, "param", align, 1, kind, "")


def _float_bits(literal: Imm, code: str, negative: bool) -> bytes:
    if literal.kind == "i":
        value = float(literal.value)
    elif literal.kind == "f4":
        value = struct.unpack("<f", struct.pack("<I", literal.value))[0]
    else:
        value = struct.unpack("<d", struct.pack("<Q", literal.value))[0]
    return struct.pack("<f" if code == "f4" else "<d", -value if negative else value)
