"""Calls of device functions: the callee's body takes the place of the call.

Registers, labels and variables of the callee get a suffix for each call site; its parameters and return values become
the caller's ``.param`` variables, which lie in local memory. Recursion and calls through pointers are refused.
"""

from __future__ import annotations

from dataclasses import replace

from lowdnn.driver.emulated.faults import invalid, unsupported
from lowdnn.driver.emulated.parsing.builtins import builtin
from lowdnn.driver.emulated.parsing.ir import FunctionIR, Instruction, Mem, ModuleIR, Not, Operand, Pair, Reg, Sym, Vec


def inlined(function: FunctionIR, module: ModuleIR) -> FunctionIR:
    """The function without calls; the function itself where there is none."""
    if not any(instruction.opcode == "call" for instruction in function.body):
        return function
    result = FunctionIR(
        function.name,
        function.is_entry,
        function.line,
        function.parameters,
        function.returns,
        dict(function.registers),
        dict(function.variables),
        directives=function.directives,
        tables=dict(function.tables),
    )
    _Inliner(module, result).copy(function, _Names({}, ""), (function.name,))
    return result


class _Names:
    """The renaming of one copied body: some names are given, and all others get a suffix."""

    def __init__(self, given: dict[str, str], suffix: str) -> None:
        self.given = given
        self.suffix = suffix

    def register(self, name: str) -> str:
        return name + self.suffix

    def operand(self, operand: Operand, own: frozenset[str]) -> Operand:
        if isinstance(operand, Reg):
            return Reg(self.register(operand.name))
        if isinstance(operand, Sym):
            return Sym(self.symbol(operand.name, own), operand.offset)
        if isinstance(operand, Mem):
            base = self.operand(operand.base, own)
            extra = tuple(self.operand(one, own) for one in operand.extra)
            return Mem(base, operand.offset, extra)  # type: ignore[arg-type]
        if isinstance(operand, Vec):
            return Vec(tuple(self.operand(one, own) for one in operand.items))
        if isinstance(operand, Pair):
            return Pair(self.operand(operand.first, own), self.operand(operand.second, own))
        if isinstance(operand, Not):
            return Not(self.operand(operand.register, own))
        return operand

    def symbol(self, name: str, own: frozenset[str]) -> str:
        return self.given.get(name, name + self.suffix if name in own else name)


class _Inliner:
    def __init__(self, module: ModuleIR, result: FunctionIR) -> None:
        self.module = module
        self.result = result
        self.sites = 0

    def copy(self, source: FunctionIR, names: _Names, stack: tuple[str, ...], end: str = "") -> None:
        """Appends ``source``'s body; ``ret`` becomes a branch to the label ``end`` if given."""
        own = frozenset((*source.variables, *source.labels, *source.tables))
        places: dict[int, list[str]] = {}
        for label, place in source.labels.items():
            places.setdefault(place, []).append(label)
        for place, instruction in enumerate(source.body):
            self._label(places.get(place, ()), names)
            if instruction.opcode == "call":
                self._call(instruction, names, own, stack)
            elif instruction.opcode == "ret" and end:
                self._append(instruction._replace(opcode="bra", modifiers=(), operands=(Sym(end),)), names)
            else:
                operands = tuple(names.operand(operand, own) for operand in instruction.operands)
                self._append(instruction._replace(operands=operands), names)
        self._label(places.get(len(source.body), ()), names)

    def _append(self, instruction: Instruction, names: _Names) -> None:
        guard = instruction.predicate
        if guard is not None:
            instruction = instruction._replace(predicate=Reg(names.register(guard.name)))
        self.result.body.append(instruction)

    def _label(self, labels: list[str] | tuple[str, ...], names: _Names) -> None:
        for label in labels:
            self.result.labels[label + names.suffix] = len(self.result.body)

    def _call(self, call: Instruction, names: _Names, own: frozenset[str], stack: tuple[str, ...]) -> None:
        returns, name, arguments = _call_parts(call)
        callee = self.module.functions.get(name) or builtin(name, call.line)
        if callee is None:
            raise unsupported(f"call of {name}, which this module does not define", call.line)
        if name in stack:
            raise unsupported(f"recursive call of {name}", call.line)
        self.sites += 1
        suffix = f"#{self.sites}"
        given: dict[str, str] = {}
        for formal, actual in (
            *zip(callee.returns, returns, strict=True),
            *zip(callee.parameters, arguments, strict=True),
        ):
            given[formal.name] = names.symbol(actual, own)
        inner = _Names(given, suffix)
        for register, kind in callee.registers.items():
            self.result.registers[inner.register(register)] = kind
        for variable in callee.variables.values():
            renamed = variable.name + suffix
            self.result.variables[renamed] = replace(variable, name=renamed)
        for table, targets in callee.tables.items():
            self.result.tables[table + suffix] = tuple(target + suffix for target in targets)
        skip = f"~skip{suffix}"
        if call.predicate is not None:
            guard = Reg(names.register(call.predicate.name))
            self.result.body.append(Instruction("bra", (), (Sym(skip),), call.line, guard, not call.negated))
        end = f"~end{suffix}"
        self.copy(callee, inner, (*stack, name), end)
        self.result.labels[end] = len(self.result.body)
        self.result.labels[skip] = len(self.result.body)


def _call_parts(call: Instruction) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """(return variables, callee, argument variables)."""
    operands = list(call.operands)
    returns = _names(operands.pop(0), call) if operands and isinstance(operands[0], Vec) else ()
    if not operands or not isinstance(operands[0], Sym):
        raise unsupported("calls through a pointer", call.line)
    name = operands.pop(0)
    arguments = _names(operands.pop(0), call) if operands else ()
    if operands:
        raise unsupported("calls through a pointer", call.line)
    return returns, name.name if isinstance(name, Sym) else "", arguments


def _names(operand: Operand, call: Instruction) -> tuple[str, ...]:
    if not isinstance(operand, Vec) or not all(isinstance(item, Sym) for item in operand.items):
        raise invalid("call: expected lists of .param variables", call.line)
    return tuple(item.name for item in operand.items if isinstance(item, Sym))
