"""The body of a function: scopes, registers, labels, instructions and their operands."""

from __future__ import annotations

from functools import lru_cache

from lowdnn.driver.emulated.faults import invalid, unsupported
from lowdnn.driver.emulated.parsing.declarations import SPACES, variables
from lowdnn.driver.emulated.parsing.ir import (
    TYPES,
    FunctionIR,
    Imm,
    Instruction,
    Mem,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)
from lowdnn.driver.emulated.parsing.tokens import Tokens, literal, negated

#: Statements that do not change what a kernel computes.
IGNORED_STATEMENTS = frozenset({".pragma", ".alias"})
_STATE_TARGETS = frozenset({"bra", "call", "brx"})


def parse_body(tokens: Tokens, function: FunctionIR) -> None:
    """Reads the ``{ }`` that stands next into ``function``."""
    _Body(tokens, function).parse()


@lru_cache(maxsize=1 << 12)
def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """(opcode, modifiers) of an instruction's full name."""
    opcode, *modifiers = name.split(".")
    return opcode, tuple(modifiers)


@lru_cache(maxsize=1 << 15)
def _register(name: str) -> Reg:
    """The register of a name; cached, since all kernels use the same names."""
    return Reg(name)


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


class _Body:
    """The parser of one function's body."""

    def __init__(self, tokens: Tokens, function: FunctionIR) -> None:
        self.p = tokens
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
        elif token in SPACES:
            self._local_variables()
        elif token == ".loc":
            p.skip_line(p.line)
        elif token in IGNORED_STATEMENTS:
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
                names = [f"{name}{i}" for i in range(p.integer())]
                p.expect(">")
            else:
                names = [name]
            suffix = self.scope.suffix
            self.scope.names.update({name: _register(name + suffix) for name in names})
            self.function.registers.update({name + suffix: kind for name in names})
            if not p.accept(","):
                break
        p.expect(";")

    def _local_variables(self) -> None:
        suffix = self.scope.suffix
        for variable in variables(self.p, suffix):
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
        if p.peek() == "@":
            p.next()
            negated = p.accept("!")
            found = self.scope.find(p.next())
            if not isinstance(found, Reg):
                raise invalid("the guard is no declared register", line)
            predicate = found
        name = p.next()
        opcode, modifiers = _parts(name)
        end = p.end_of_statement()
        operands = self._plain_operands(p.tokens[p.at : end])
        if operands is None:
            operands = self._operands(name, line)
        else:
            p.at = end + 1
        if opcode in _STATE_TARGETS:
            self.branches.append((len(self.function.body), self.scope))
        self.function.body.append(Instruction(opcode, modifiers, tuple(operands), line, predicate, negated))

    def _plain_operands(self, tokens: list[str]) -> list[Operand] | None:
        """Operands that are registers and numbers only (most instructions), or None."""
        if tokens[1::2].count(",") != len(tokens) // 2:
            return None
        operands: list[Operand] = []
        for token in tokens[::2]:
            found = self.scope.find(token)
            if found.__class__ is Reg:
                operands.append(found)
            elif token.isdigit():
                operands.append(literal(token, self.p.line))
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
            return negated(literal(p.next(), p.line))
        if token[0].isdigit():
            return literal(token, p.line)
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
