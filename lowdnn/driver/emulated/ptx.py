"""PTX text -> ``ModuleIR``. Grammar: PTX ISA manual, sections 4 (syntax), 5 (state spaces and types), 11 (directives).

Scopes are flattened: a register, variable or label of an inner ``{ }`` gets a suffix, so that inline asm may repeat
names. What the parser does not know, it refuses with the line.
"""

from __future__ import annotations

import re
import struct

from lowdnn.driver.emulated.faults import invalid, unsupported
from lowdnn.driver.emulated.ir import (
    TYPES,
    FunctionIR,
    Imm,
    Instruction,
    Mem,
    ModuleIR,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Sym,
    Variable,
    Vec,
)

_TOKEN = re.compile(
    r'"[^"]*"|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?'
    r"|[A-Za-z_$%.][\w$%.]*(?:::[\w$%.]+)*|\S"
)
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_IMPLICIT = re.compile(r"//\s*implicit-def:\s*(%[\w$]+)")
_LINKAGE = frozenset({".visible", ".weak", ".extern", ".common"})
_SPACES = frozenset({".global", ".const", ".shared", ".local", ".param"})
_IGNORED_STATEMENTS = frozenset({".pragma", ".alias"})
_TUNING = frozenset({
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".maxnctapersm", ".reqnctapercluster", ".explicitcluster",
    ".maxclusterrank", ".noreturn", ".blocksareclusters",
})  # fmt: skip
_STATE_TARGETS = frozenset({"bra", "call", "brx"})


def parse_module(text: str) -> ModuleIR:
    """Parses a whole PTX text (a trailing NUL is allowed)."""
    return _Parser(text.rstrip("\0")).module()


class _Scope:
    """Names that one ``{ }`` declares, mapped to their unique names."""

    def __init__(self, parent: _Scope | None, suffix: str) -> None:
        self.parent = parent
        self.suffix = suffix
        self.names: dict[str, Operand] = {}
        self.labels: dict[str, str] = {}

    def find(self, name: str) -> Operand | None:
        scope: _Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def find_label(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            found = scope.labels.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None


class _Parser:
    def __init__(self, text: str) -> None:
        text = _BLOCK_COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
        self.lines = text.split("\n")
        self.tokens: list[str] = []
        self.token_lines: list[int] = []
        for number, line in enumerate(self.lines, 1):
            self._tokenise(line, number)
        self.tokens.append("")
        self.token_lines.append(len(self.lines))
        self.at = 0
        self.ir = ModuleIR("", "", self.lines)

    def _tokenise(self, line: str, number: int) -> None:
        code, slashes, comment = line.partition("//")
        if slashes:
            implicit = _IMPLICIT.match(slashes + comment)
            if implicit:
                code += f" implicit.def {implicit.group(1)};"
        found = _TOKEN.findall(code)
        self.tokens += found
        self.token_lines += [number] * len(found)

    # -- tokens ---------------------------------------------------------------------------------------------
    @property
    def line(self) -> int:
        return self.token_lines[self.at]

    def peek(self) -> str:
        return self.tokens[self.at]

    def next(self) -> str:
        token = self.tokens[self.at]
        if not token:
            raise invalid("unexpected end of the PTX text", self.line)
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise invalid(f"expected {token!r}, got {found!r}", self.token_lines[self.at - 1])

    def integer(self) -> int:
        negative = self.accept("-")
        token = self.next()
        try:
            value = int(token.rstrip("U"), 0)
        except ValueError:
            raise invalid(f"expected an integer, got {token!r}", self.token_lines[self.at - 1]) from None
        return -value if negative else value

    def end_of_statement(self) -> int:
        """Where the next ``;`` stands."""
        try:
            return self.tokens.index(";", self.at)
        except ValueError:
            raise invalid("a statement without ';'", self.line) from None

    def skip_statement(self) -> None:
        while self.next() != ";":
            pass

    # -- module ---------------------------------------------------------------------------------------------
    def module(self) -> ModuleIR:
        while self.tokens[self.at]:
            self._module_item()
        return self.ir

    def _module_item(self) -> None:
        while self.peek() in _LINKAGE:
            self.next()
        token, line = self.peek(), self.line
        if token == ".version":
            self.next()
            self.ir.version = self.next()
        elif token == ".target":
            self.next()
            self.ir.target = self.next()
            while self.accept(","):
                self.next()
        elif token == ".address_size":
            self.next()
            if self.integer() != 64:
                raise unsupported(".address_size other than 64", line)
        elif token in (".entry", ".func"):
            self._function()
        elif token in _SPACES:
            for variable in self._variables(suffix=""):
                self.ir.variables[variable.name] = variable
        elif token in _IGNORED_STATEMENTS:
            self.skip_statement()
        elif token == ".file":
            self._skip_line(line)
        elif token == ".section":
            self._skip_section()
        else:
            raise unsupported(f"directive {token!r}", line)

    def _skip_line(self, line: int) -> None:
        while self.tokens[self.at] and self.token_lines[self.at] == line:
            self.at += 1

    def _skip_section(self) -> None:
        while self.next() != "}":
            pass

    # -- variables ------------------------------------------------------------------------------------------
    def _variables(self, suffix: str) -> list[Variable]:
        """``.space [.align n] [.vN] .type name[dims] [= init] {, name...};``"""
        space, align, vector, kind = self._declaration_head()
        variables = []
        while True:
            variables.append(self._declarator(space, align, vector, kind, suffix))
            if not self.accept(","):
                break
        self.expect(";")
        return variables

    def _declaration_head(self) -> tuple[str, int | None, int, str]:
        space = self.next()[1:].split("::")[0]
        align: int | None = None
        vector = 1
        while True:
            token = self.next()
            if token == ".align":
                align = self.integer()
            elif token in (".v2", ".v4"):
                vector = int(token[2:])
            elif token == ".attribute":
                self._skip_parentheses()
            elif token == ".ptr":
                continue
            elif token[1:] in TYPES:
                return space, align, vector, token[1:]
            else:
                raise unsupported(f"{token!r} in a .{space} declaration", self.token_lines[self.at - 1])

    def _skip_parentheses(self) -> None:
        self.expect("(")
        while self.next() != ")":
            pass

    def _declarator(self, space: str, align: int | None, vector: int, kind: str, suffix: str) -> Variable:
        line = self.line
        name = self.next()
        element = TYPES[kind][1] * vector
        count: int | None = 1
        while self.accept("["):
            if self.accept("]"):
                count = None
                continue
            extent = self.integer()
            self.expect("]")
            count = extent if count is None else count * extent
        initial, symbols = self._initialiser(kind) if self.accept("=") else (None, ())
        if count is None and initial is not None:
            count = -(-len(initial) // element)
        size = None if count is None else count * element
        if initial is not None and size is not None:
            initial = initial.ljust(size, b"\0")
        return Variable(name + suffix, space, align or element, size, kind, initial, symbols, line)

    def _initialiser(self, kind: str) -> tuple[bytes, tuple[tuple[int, str], ...]]:
        data = bytearray()
        symbols: list[tuple[int, str]] = []
        depth = 0
        while True:
            token = self.peek()
            if token == "{":
                depth += 1
                self.next()
            elif token == "}":
                depth -= 1
                self.next()
            elif token == "," and depth:
                self.next()
            elif token in (";", ","):
                return bytes(data), tuple(symbols)
            else:
                self._initial_value(kind, data, symbols)

    def _initial_value(self, kind: str, data: bytearray, symbols: list[tuple[int, str]]) -> None:
        code, size = TYPES[kind]
        token = self.peek()
        if re.match(r"[A-Za-z_$%]", token):
            name = self.next()
            if self.accept("("):
                name = self.next()
                self.expect(")")
            offset = self.integer() if self.accept("+") else 0
            symbols.append((len(data), name))
            data += offset.to_bytes(8, "little")
            return
        negative = self.accept("-")
        literal = _literal(self.next(), self.line)
        if code[0] == "f":
            data += _float_bits(literal, code, negative)
        else:
            value = -literal.value if negative else literal.value
            data += (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    # -- functions ------------------------------------------------------------------------------------------
    def _function(self) -> None:
        line = self.line
        is_entry = self.next() == ".entry"
        returns = self._parameter_list() if self.peek() == "(" else []
        function = FunctionIR(self.next(), is_entry, line, returns=returns)
        if self.peek() == "(":
            function.parameters = self._parameter_list()
        self._directives(function)
        if self.accept(";"):
            return
        _Body(self, function).parse()
        self.ir.functions[function.name] = function

    def _parameter_list(self) -> list[Variable]:
        self.expect("(")
        parameters: list[Variable] = []
        while not self.accept(")"):
            if self.peek() == ".reg":
                raise unsupported(".reg parameters of functions", self.line)
            parameters.append(self._parameter())
            self.accept(",")
        return parameters

    def _parameter(self) -> Variable:
        self.expect(".param")
        align: int | None = None
        kind = ""
        while self.peek().startswith("."):
            token = self.next()
            if token == ".align":
                value = self.integer()
                align = value if not kind else align
            elif token[1:] in TYPES:
                kind = token[1:]
            elif token not in (".ptr", ".global", ".const", ".shared", ".local"):
                raise unsupported(f"{token!r} in a parameter", self.token_lines[self.at - 1])
        return self._declarator("param", align, 1, kind, "")

    def _directives(self, function: FunctionIR) -> None:
        while self.peek() in _TUNING:
            name = self.next()[1:]
            values: list[int] = []
            while re.match(r"\d", self.peek()):
                values.append(self.integer())
                if not self.accept(","):
                    break
            function.directives[name] = tuple(values)


class _Body:
    """The ``{ }`` of one function."""

    def __init__(self, parser: _Parser, function: FunctionIR) -> None:
        self.p = parser
        self.function = function
        self.scope = _Scope(None, "")
        self.scopes = 0
        self.branches: list[tuple[int, _Scope]] = []
        for variable in (*function.parameters, *function.returns):
            self.scope.names[variable.name] = Sym(variable.name)

    def parse(self) -> None:
        self.p.expect("{")
        depth = 1
        while depth:
            token = self.p.peek()
            if token == "{":
                self.p.next()
                depth += 1
                self.scopes += 1
                self.scope = _Scope(self.scope, f"@{self.scopes}")
            elif token == "}":
                self.p.next()
                depth -= 1
                self.scope = self.scope.parent or self.scope
            elif token == ";":
                self.p.next()
            else:
                self._statement(token)
        self._resolve_labels()

    def _statement(self, token: str) -> None:
        p = self.p
        if token == ".reg":
            self._registers()
        elif token in _SPACES:
            self._local_variables()
        elif token == ".loc":
            p._skip_line(p.line)
        elif token in _IGNORED_STATEMENTS:
            p.skip_statement()
        elif token and p.tokens[p.at + 1] == ":" and token != "@":
            self._label(p.next())
        else:
            self._instruction()

    def _registers(self) -> None:
        p = self.p
        p.next()
        kind = p.next()[1:]
        if kind in ("v2", "v4") or kind not in TYPES:
            raise unsupported(f".reg .{kind}", p.line)
        while True:
            name = p.next()
            if p.accept("<"):
                for i in range(p.integer()):
                    self._register(f"{name}{i}", kind)
                p.expect(">")
            else:
                self._register(name, kind)
            if not p.accept(","):
                break
        p.expect(";")

    def _register(self, name: str, kind: str) -> None:
        unique = name + self.scope.suffix
        self.scope.names[name] = Reg(unique)
        self.function.registers[unique] = kind

    def _local_variables(self) -> None:
        suffix = self.scope.suffix
        for variable in self.p._variables(suffix):
            self.function.variables[variable.name] = variable
            self.scope.names[variable.name.removesuffix(suffix) if suffix else variable.name] = Sym(variable.name)

    def _label(self, name: str) -> None:
        p = self.p
        p.expect(":")
        unique = name + self.scope.suffix
        if unique in self.function.labels:
            raise invalid(f"label {name!r} stands twice in one scope", p.line)
        self.scope.labels[name] = unique
        if p.peek() == ".branchtargets":
            p.next()
            targets = [p.next()]
            while p.accept(","):
                targets.append(p.next())
            p.expect(";")
            self.function.tables[unique] = tuple(targets)
        elif p.peek() == ".callprototype":
            p.skip_statement()
        else:
            self.function.labels[unique] = len(self.function.body)

    def _instruction(self) -> None:
        p = self.p
        line = p.line
        predicate: Reg | None = None
        negated = False
        if p.accept("@"):
            negated = p.accept("!")
            found = self.scope.find(p.next())
            if not isinstance(found, Reg):
                raise invalid("the guard is no declared register", line)
            predicate = found
        name = p.next()
        opcode, *modifiers = name.split(".")
        end = p.end_of_statement()
        operands = self._plain_operands(p.tokens[p.at : end])
        if operands is None:
            operands = self._operands(name, line)
        else:
            p.at = end + 1
        if opcode in _STATE_TARGETS:
            self.branches.append((len(self.function.body), self.scope))
        self.function.body.append(Instruction(opcode, tuple(modifiers), tuple(operands), line, predicate, negated))

    def _plain_operands(self, tokens: list[str]) -> list[Operand] | None:
        """Operands that are registers and numbers only (most instructions), or None."""
        operands: list[Operand] = []
        for place, token in enumerate(tokens):
            if place & 1:
                if token != ",":
                    return None
                continue
            found = self.scope.find(token)
            if isinstance(found, Reg):
                operands.append(found)
            elif token.isdigit():
                operands.append(_literal(token, self.p.line))
            else:
                return None
        return operands

    def _operands(self, name: str, line: int) -> list[Operand]:
        p = self.p
        operands: list[Operand] = []
        while not p.accept(";"):
            operands.append(self._operand())
            if p.peek() not in (",", ";"):
                raise invalid(f"expected ',' or ';' after an operand of {name}, got {p.peek()!r}", line)
            p.accept(",")
        return operands

    def _operand(self) -> Operand:
        p = self.p
        token = p.peek()
        if token == "[":
            return self._memory()
        if token in ("{", "("):
            return self._vector("}" if token == "{" else ")")
        if token == "!":
            p.next()
            return Not(self._operand())
        operand = self._scalar()
        if p.accept("|"):
            return Pair(operand, self._scalar())
        return operand

    def _vector(self, close: str) -> Vec:
        p = self.p
        p.next()
        items: list[Operand] = []
        while not p.accept(close):
            items.append(self._operand())
            p.accept(",")
        return Vec(tuple(items))

    def _memory(self) -> Mem:
        p = self.p
        line = p.line
        p.expect("[")
        base = self._scalar()
        if isinstance(base, Sym):
            base, offset = Sym(base.name), base.offset
        else:
            offset = self._offset()
        extra: list[Operand] = []
        while p.accept(","):
            extra.append(self._operand())
        p.expect("]")
        if not isinstance(base, Reg | Sym | Imm):
            raise invalid("an address must be a register, a variable or a number", line)
        return Mem(base, offset, tuple(extra))

    def _offset(self) -> int:
        if self.p.accept("+"):
            return self.p.integer()
        if self.p.peek() == "-":
            return self.p.integer()
        return 0

    def _scalar(self) -> Operand:
        p = self.p
        token = p.next()
        if token == "_":
            return Sink()
        if token == "-":
            literal = _literal(p.next(), p.line)
            return _negated(literal)
        if token[0].isdigit():
            return _literal(token, p.line)
        found = self.scope.find(token)
        if isinstance(found, Reg):
            return found
        if token[0] == "%":
            return Special(token)
        name = found.name if isinstance(found, Sym) else token
        return Sym(name, self._offset())

    def _resolve_labels(self) -> None:
        body = self.function.body
        for index, scope in self.branches:
            old = body[index]
            if old.opcode == "call":
                continue
            operands = tuple(self._target(operand, scope, old.line) for operand in old.operands)
            body[index] = Instruction(old.opcode, old.modifiers, operands, old.line, old.predicate, old.negated)
            for operand in operands:
                if isinstance(operand, Sym) and operand.name in self.function.tables:
                    targets = self.function.tables[operand.name]
                    self.function.tables[operand.name] = tuple(scope.find_label(name) or name for name in targets)

    def _target(self, operand: Operand, scope: _Scope, line: int) -> Operand:
        if not isinstance(operand, Sym):
            return operand
        found = scope.find_label(operand.name)
        if found is None:
            raise invalid(f"no label {operand.name!r} in scope", line)
        return Sym(found)


def _literal(token: str, line: int) -> Imm:
    prefix = token[:2].lower()
    if prefix == "0f":
        return Imm(int(token[2:], 16), "f4")
    if prefix == "0d":
        return Imm(int(token[2:], 16), "f8")
    if "." in token:
        return Imm(struct.unpack("<Q", struct.pack("<d", float(token)))[0], "f8")
    try:
        return Imm(int(token.rstrip("U"), 0), "i")
    except ValueError:
        pass
    try:
        return Imm(int(token.rstrip("U"), 8), "i")
    except ValueError:
        raise invalid(f"expected a number, got {token!r}", line) from None


def _negated(literal: Imm) -> Imm:
    if literal.kind == "i":
        return Imm(-literal.value, "i")
    sign = 1 << (31 if literal.kind == "f4" else 63)
    return Imm(literal.value ^ sign, literal.kind)


def _float_bits(literal: Imm, code: str, negative: bool) -> bytes:
    if literal.kind == "i":
        value = float(literal.value)
    elif literal.kind == "f4":
        value = struct.unpack("<f", struct.pack("<I", literal.value))[0]
    else:
        value = struct.unpack("<d", struct.pack("<Q", literal.value))[0]
    return struct.pack("<f" if code == "f4" else "<d", -value if negative else value)
