"""Basic blocks -> Python source: one function ``block(G, R)`` each.

``G`` is the running group of lanes, ``R`` the register file (a list; an entry is an array over the group's lanes, or
a scalar while its value is the same in every lane). Within a function each PTX register lives in a local variable per
type it is looked at with; names are used again once their value is dead, so that arrays are freed early. Every
literal is a typed scalar, so that NumPy's promotion never decides. A block that ends in a branch returns the
condition, one that ends in a barrier its operands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import invalid, unsupported
from lowdnn.driver.emulated.generating.flow import Block, Flow
from lowdnn.driver.emulated.generating.rows import Modifiers, Row
from lowdnn.driver.emulated.generating.special import special_value
from lowdnn.driver.emulated.generating.wgmma_registers import wgmma_registers
from lowdnn.driver.emulated.memory.arena import DTYPES
from lowdnn.driver.emulated.parsing.ir import (
    TYPES,
    FunctionIR,
    Imm,
    Instruction,
    Not,
    Operand,
    Reg,
    Sink,
    Special,
    Sym,
    Variable,
)

SIZES = {"p": 1, "u1": 1, "i1": 1, "u2": 2, "i2": 2, "u4": 4, "i4": 4, "f4": 4, "u8": 8, "i8": 8, "f8": 8, "w16": 16}
_CARRY = "%CC"
#: The pseudo value code of a register's ``Address``.
_ADDRESS = "@"
_UNSIGNED = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


@dataclass(frozen=True)
class Layout:
    """Where a function's variables lie: offsets in the parameter block, in shared and in local memory.

    Names that are not here are module variables.
    """

    parameters: Mapping[str, int]
    shared: Mapping[str, int]
    local: Mapping[str, int]


@dataclass(frozen=True)
class BlockCode:
    """Source of one block's function ``block``. ``lines[n]`` is the PTX line of source line ``n + 1``; ``file_name``
    stands in tracebacks, by which an exception is mapped back to PTX."""

    source: str
    lines: tuple[int, ...]
    file_name: str

    @cached_property
    def code(self) -> CodeType:
        """Compiled when the block first runs (many blocks of a kernel never do), once for all loads of the PTX."""
        return compile(self.source, self.file_name, "exec")


@dataclass(frozen=True)
class Program:
    """The generated code of one function. ``symbols`` are the module variables whose addresses the namespace must hold,
    with their names there; ``constants`` completes the namespace."""

    blocks: tuple[BlockCode, ...]
    registers: tuple[str, ...]
    symbols: Mapping[str, str]
    constants: Mapping[str, Any]
    takes_parameter_address: bool


def generate(function: FunctionIR, flow: Flow, table: Mapping[str, Row], layout: Layout) -> Program:
    """Generates all blocks of a function. Refuses modifiers and operands that no emitter takes."""
    emitter = Emitter(function, flow, table, layout)
    blocks = tuple(emitter.block(block) for block in flow.blocks)
    return Program(
        blocks,
        tuple(emitter.slots),
        dict(emitter.symbols),
        dict(emitter.constants),
        emitter.takes_parameter_address,
    )


class Emitter:
    """Writes the blocks of one function. Emitters of instructions use ``use``, ``out``, ``temp``, ``do`` and
    ``modifiers``."""

    def __init__(self, function: FunctionIR, flow: Flow, table: Mapping[str, Row], layout: Layout) -> None:
        self.function = function
        self.flow = flow
        self.table = table
        self.layout = layout
        self.text: list[str] = []
        self.lines: list[int] = []
        self.slots: dict[str, int] = {}
        self.symbols: dict[str, str] = {}
        self.constants: dict[str, Any] = {}
        self.takes_parameter_address = False
        self.instruction = Instruction("", (), (), function.line)
        self.guard = ""
        self.wgmma = wgmma_registers(function, flow, table)
        self.settled: set[str] = set()
        self.writable: set[str] = set()
        self.names: dict[str, dict[str, str]] = {}
        self.users: dict[str, int] = {}
        self.free: list[str] = []
        self.fresh: list[str] = []
        self.named = 0

    # -- for emitters of instructions ----------------------------------------------------------------------------
    def modifiers(self) -> Modifiers:
        return Modifiers(self.instruction)

    def refuse(self, why: str) -> Exception:
        return unsupported(f"{self.instruction.name}: {why}", self.instruction.line)

    def use(self, operand: Operand, code: str) -> str:
        """An expression for the operand's value as ``code``."""
        if isinstance(operand, Reg):
            return self._register(operand.name, code)
        if isinstance(operand, Imm):
            return self.constant(self._immediate(operand, code), code)
        if isinstance(operand, Special):
            return self._special(operand.name, code)
        if isinstance(operand, Sym):
            return self._address(operand, code)
        if isinstance(operand, Not) and code == "p":
            return f"~{self.use(operand.register, 'p')}"
        raise self.refuse("an operand of this form")

    def address(self, base: Operand) -> str:
        """The ``Address`` of a base operand; made once for a register's value."""
        if not isinstance(base, Reg):
            return self.temp(f"Address({self.use(base, 'u8')})")
        known = self.names.get(base.name, {}).get(_ADDRESS)
        if known is None:
            size = TYPES[self.function.registers[base.name]][1]
            if size not in (4, 8):
                raise self.refuse(f"register {base.name} as an address")
            known = self._add_view(base.name, _ADDRESS, f"Address({self._register(base.name, _UNSIGNED[size])})")
        return known

    def use_all(self, code: str, first: int = 1, count: int | None = None) -> list[str]:
        """Expressions for the operands from ``first`` on."""
        operands = self.instruction.operands
        return [self.use(o, code) for o in operands[first : None if count is None else first + count]]

    def out(self, operand: Operand, code: str, expression: str) -> None:
        """Assigns a value of type ``code`` to a destination operand, under the instruction's guard."""
        if isinstance(operand, Sink):
            self.do(expression)
            return
        if not isinstance(operand, Reg):
            raise self.refuse("a destination that is no register")
        name = operand.name
        self._check_writable(name)
        kind, size = TYPES[self.function.registers[name]]
        if kind == "p" or code == "p":
            if kind != code:
                raise self.refuse(f"type of register {name}")
        elif SIZES[code] != size:
            if SIZES[code] > size:
                raise self.refuse(f"register {name} is too small")
            wide = ("i" if code[0] == "i" else "u") + str(size)
            if code[0] == "f":
                raise self.refuse(f"register {name} has another size")
            expression, code = f"({expression}).astype({wide})", wide
        value = expression if expression in self.users else self.temp(expression)
        if self.guard:
            old = self._register(name, code)
            value = self.temp(f"select({self.guard},{value},{old})")
        self._bind(name, code, value)

    def alias(self, operand: Operand, code: str, source: Operand) -> None:
        """``mov``: binds the source's variable to the destination, without a copy."""
        simple = isinstance(operand, Reg) and isinstance(source, Reg) and not self.guard
        if simple and isinstance(operand, Reg) and isinstance(source, Reg):
            kinds = self.function.registers
            if TYPES[kinds[operand.name]][1] == TYPES[kinds[source.name]][1] == SIZES[code]:
                if source.name in self.wgmma.accumulators and source.name not in self.settled:
                    value = self.raw(source)
                    self.out_raw(operand, next(iter(self.names[source.name])), value)
                    return
                self._bind(operand.name, code, self._register(source.name, code))
                return
        self.out(operand, code, self.use(source, code))

    def raw(self, operand: Operand) -> str:
        """The variable of a register, unchanged from the register file: an accumulator that ``wgmma`` may still
        write."""
        if not isinstance(operand, Reg):
            raise self.refuse("an accumulator that is no register")
        name = operand.name
        if name not in self.names:
            self._bind(name, self.flow.homes[name], self.temp(f"R[{self._slot(name)}]"))
            self.settled.discard(name)
        return next(iter(self.names[name].values()))

    def either(self, operand: Operand, code: str) -> str:
        """``raw`` of a register that may be an unfinished accumulator, otherwise its value as ``code``."""
        held = isinstance(operand, Reg) and operand.name in self.wgmma.accumulators
        if held and isinstance(operand, Reg) and operand.name not in self.settled:
            return self.raw(operand)
        return self.use(operand, code)

    def out_raw(self, operand: Operand, code: str, value: str) -> None:
        """Binds the variable ``value`` to register ``operand`` as a possibly unfinished accumulator: ``wgmma`` may
        still write it."""
        if not isinstance(operand, Reg) or SIZES[code] != TYPES[self.function.registers[operand.name]][1]:
            raise self.refuse("an accumulator of this type")
        self._check_writable(operand.name)
        self._bind(operand.name, code, value)
        self.settled.discard(operand.name)

    def temp(self, expression: str) -> str:
        """A local variable that holds ``expression``, free after the instruction unless bound to a register."""
        name = self._name()
        self.do(f"{name}={expression}")
        return name

    def temps(self, count: int, expression: str) -> list[str]:
        """``count`` local variables that hold the elements of a tuple expression."""
        names = [self._name() for _ in range(count)]
        self.do(f"{','.join(names)},={expression}")
        return names

    def _name(self) -> str:
        if self.free:
            name = self.free.pop()
        else:
            self.named += 1
            name = f"v{self.named}"
        self.users[name] = 0
        self.fresh.append(name)
        return name

    def do(self, statement: str) -> None:
        self.text.append(" " + statement)
        self.lines.append(self.instruction.line)

    def constant(self, value: Any, code: str) -> str:
        """The name of a typed NumPy scalar."""
        scalar = DTYPES[code](value)
        name = f"K{code}_{scalar.tobytes().hex()}"
        self.constants.setdefault(name, scalar)
        return name

    def call(self, function: Callable[..., Any], *arguments: str) -> str:
        """A call of a value function."""
        name = f"{function.__module__.rsplit('.', 1)[-1]}_{function.__name__}"
        self.constants[name] = function
        return f"{name}({','.join(arguments)})"

    def bound(self, key: str, function: Callable[..., Any], *arguments: str) -> str:
        """A call of a function that has its modifiers bound; ``key`` names it."""
        self.constants[f"F_{key}"] = function
        return f"F_{key}({','.join(arguments)})"

    def carry(self) -> str:
        """The variable of the carry flag, which an earlier instruction of this block has set."""
        known = self.names.get(_CARRY)
        if known is None:
            raise self.refuse("reads the carry flag, but no instruction of its block writes it")
        return known["p"]

    def set_carry(self, value: str) -> None:
        self._bind(_CARRY, "p", value)

    def object(self, name: str, value: Any) -> str:
        """Puts any object into the namespace of the code."""
        self.constants[name] = value
        return name

    def register_kind(self, operand: Operand) -> str:
        """Declared PTX type of a register operand; empty for anything else."""
        return self.function.registers[operand.name] if isinstance(operand, Reg) else ""

    def variable_space(self, name: str) -> str:
        """State space of a variable by name: param, shared, local, or empty for one of the module."""
        if name in self.layout.parameters:
            return "param"
        if name in self.layout.shared:
            return "shared"
        return "local" if name in self.layout.local else ""

    # -- blocks ----------------------------------------------------------------------------------------------------
    def block(self, block: Block) -> BlockCode:
        """Generates one block."""
        self.names, self.users, self.free, self.fresh, self.named = {}, {}, [], [], 0
        self.settled, self.writable = set(), set()
        self.text, self.lines = ["def block(G,R):"], [block.line]
        last_use = self._last_uses(block)
        for place, instruction in enumerate(block.body):
            self._emit(instruction)
            for name in last_use.get(place, ()):
                self._release(name)
            self.free += [name for name in self.fresh if not self.users[name]]
        if block.end is not None:
            self.instruction = block.end
            self.guard = ""
        self._write_back(block)
        if block.end is not None:
            self._emit_row(block.end)
        if len(self.text) == 1:
            self.do("return")
        return BlockCode("\n".join(self.text), tuple(self.lines), f"<ptx {self.function.name} block {block.index}>")

    def _emit(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.fresh = []
        self.guard = ""
        if instruction.predicate is not None:
            guard = self._register(instruction.predicate.name, "p")
            self.guard = f"~{guard}" if instruction.negated else guard
        self._emit_row(instruction)

    def _emit_row(self, instruction: Instruction) -> None:
        """Raises INVALID_PTX where the operands do not fit: emitters unpack them without counting them first."""
        try:
            self.table[instruction.opcode].emit(self, instruction)
        except (ValueError, LookupError, AttributeError) as error:
            raise invalid(f"operands of {instruction.name}: {error}", instruction.line) from error

    def _last_uses(self, block: Block) -> dict[int, list[str]]:
        last: dict[str, int] = {}
        for place, (reads, writes) in enumerate(block.touched):
            for name in reads:
                last[name] = place
            for name in writes:
                last[name] = place
        for name in block.end_reads:
            last.pop(name, None)
        dead: dict[int, list[str]] = {}
        for name, place in last.items():
            if name not in block.writes:
                dead.setdefault(place, []).append(name)
        return dead

    def _write_back(self, block: Block) -> None:
        for name in sorted(block.writes):
            if name in self.names:
                self.do(f"R[{self._slot(name)}]={self._kept(name, self.flow.homes[name])}")

    def _kept(self, name: str, home: str) -> str:
        """The value of a register that is written back to the register file."""
        if name not in self.wgmma.accumulators or name in self.settled:
            return self._register(name, home)
        code, value = next(iter(self.names[name].items()))
        return value if code == home else f"retyped({value},{home})"

    # -- registers -------------------------------------------------------------------------------------------------
    def _slot(self, name: str) -> int:
        return self.slots.setdefault(name, len(self.slots))

    def _register(self, name: str, code: str) -> str:
        if name in self.wgmma.accumulators and name not in self.settled:
            self._settle(name)
        known = self.names.get(name)
        if known is None:
            home = self.flow.homes[name]
            self._bind(name, home, self.temp(f"R[{self._slot(name)}]"))
            known = self.names[name]
        if code in known:
            return known[code]
        kind, size = TYPES[self.function.registers[name]]
        if kind == "p" or code == "p":
            raise self.refuse(f"type of register {name}")
        if SIZES[code] == size:
            source = next(value for have, value in known.items() if have != _ADDRESS)
            return self._add_view(name, code, f"{source}.view({code})")
        if SIZES[code] > size:
            raise self.refuse(f"register {name} is too small")
        if code[0] == "f":
            raise self.refuse(f"register {name} has another size")
        unsigned = self._register(name, _UNSIGNED[size])
        return self._add_view(name, code, f"{unsigned}.astype({code})")

    def _check_writable(self, name: str) -> None:
        """An instruction, other than a copy or a constant, writes what may be a register of a ``wgmma`` in flight."""
        if not self.wgmma.results or self.instruction.opcode in ("mov", "wgmma"):
            return
        for keys, use in ((self.wgmma.factors, "A"), (self.wgmma.results, "an accumulator")):
            key = keys.get(name)
            if key is not None and key not in self.writable:
                self.do(f"G.batch.commit_groups.check_unused(G,{key!r},{use!r})")
                self.writable.add(key)

    def _settle(self, name: str) -> None:
        """An instruction reads the value of a register that may be an accumulator in flight."""
        value = self.raw(Reg(name))
        code = next(iter(self.names[name]))
        self._bind(name, code, self.temp(f"settled(G,{value},{code})"))

    def _add_view(self, name: str, code: str, expression: str) -> str:
        value = self.temp(expression)
        self.names[name][code] = value
        self.users[value] += 1
        return value

    def _bind(self, name: str, code: str, value: str) -> None:
        self.users[value] += 1
        self._release(name)
        self.names[name] = {code: value}
        self.settled.add(name)

    def _release(self, name: str) -> None:
        for value in self.names.pop(name, {}).values():
            self.users[value] -= 1
            if not self.users[value] and value not in self.fresh:
                self.fresh.append(value)

    # -- other operands --------------------------------------------------------------------------------------------
    def _immediate(self, literal: Imm, code: str) -> Any:
        size = SIZES[code]
        if code == "p":
            return bool(literal.value)
        if code == "w16":
            raise self.refuse("a 128-bit literal")
        if code[0] == "f":
            return _float_value(literal, code)
        value = literal.value
        if literal.kind == "f8" and size == 4:
            value = struct.unpack("<I", struct.pack("<f", _float_value(literal, "f8")))[0]
        value &= (1 << 8 * size) - 1
        return value - (1 << 8 * size) if code[0] == "i" and value >> (8 * size - 1) else value

    def _special(self, name: str, code: str) -> str:
        expression, own = special_value(name, self.instruction.line)
        if own != code and "p" in (own, code):
            raise self.refuse(f"type of {name}")
        return expression if own == code else f"({expression}).astype({code})"

    def _address(self, symbol: Sym, code: str) -> str:
        if code not in ("u8", "i8", "u4", "i4"):
            raise self.refuse(f"address of {symbol.name} as {code}")
        for space in (self.layout.shared, self.layout.local):
            if symbol.name in space:
                return self.constant(space[symbol.name] + symbol.offset, code)
        if symbol.name in self.layout.parameters:
            self.takes_parameter_address = True
            offset = self.constant(self.layout.parameters[symbol.name] + symbol.offset, "u8")
            return f"(G.batch.parameter_address+{offset}).astype({code})"
        name = self.symbols.setdefault(symbol.name, f"A_{len(self.symbols)}")
        return f"({name}+{self.constant(symbol.offset, 'u8')}).astype({code})"


def _float_value(literal: Imm, code: str) -> Any:
    if literal.kind == "f4":
        return struct.unpack("<f", struct.pack("<I", literal.value & 0xFFFFFFFF))[0]
    if literal.kind == "f8":
        return struct.unpack("<d", struct.pack("<Q", literal.value))[0]
    if code == "f4":
        return np.uint32(literal.value & 0xFFFFFFFF).view(np.float32)
    return np.uint64(literal.value & 0xFFFFFFFFFFFFFFFF).view(np.float64)


def check_variables(function: FunctionIR, variables: Mapping[str, Variable], symbols: Mapping[str, str]) -> None:
    """Refuses addresses of names that nothing declares."""
    for name in symbols:
        if name not in variables:
            raise invalid(f"{function.name} uses {name!r}, which nothing declares", function.line)
