"""PTX as data: operands, instructions, variables, functions, modules.

Register, label and variable names are unique within a function: names of inner ``{ }`` scopes carry a suffix.
``line`` counts from 1 in the PTX text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

#: PTX fundamental type -> (value code, size in bytes). A code names the NumPy type that holds the value: ``u4`` uint32,
#: ``i4`` int32, ``f4`` float32, ``p`` bool, ``w16`` 16 bytes. 16-bit floats and packed pairs are held as bits.
TYPES: dict[str, tuple[str, int]] = {
    "pred": ("p", 1),
    "b8": ("u1", 1),
    "u8": ("u1", 1),
    "s8": ("i1", 1),
    "b16": ("u2", 2),
    "u16": ("u2", 2),
    "s16": ("i2", 2),
    "f16": ("u2", 2),
    "bf16": ("u2", 2),
    "b32": ("u4", 4),
    "u32": ("u4", 4),
    "s32": ("i4", 4),
    "f32": ("f4", 4),
    "tf32": ("u4", 4),
    "f16x2": ("u4", 4),
    "bf16x2": ("u4", 4),
    "u16x2": ("u4", 4),
    "s16x2": ("u4", 4),
    "b64": ("u8", 8),
    "u64": ("u8", 8),
    "s64": ("i8", 8),
    "f64": ("f8", 8),
    "b128": ("w16", 16),
}


@dataclass(frozen=True, slots=True)
class Reg:
    """A register. ``name`` is unique in its function."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, as written (``%tid.x``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal: an integer (``kind`` "i") or the bits of a float (``kind`` "f4", "f8")."""

    value: int
    kind: str


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a variable (or a function's name, or a label), plus bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """``[base + offset]``; ``extra`` holds further operands inside the brackets (tensor coordinates)."""

    base: Reg | Sym | Imm
    offset: int
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, ...}``, and the parenthesised lists of ``call``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """``!p`` (or a negated register operand)."""

    register: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a destination that is thrown away."""


Operand = Reg | Special | Imm | Sym | Mem | Vec | Pair | Not | Sink


class Instruction(NamedTuple):
    """``@[!]predicate opcode.modifiers operands``. A kernel has thousands, so that it matters how fast one is made."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    predicate: Reg | None = None
    negated: bool = False

    @property
    def name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """A variable in a state space. ``initial`` is the content in bytes; ``symbols`` are (offset, name) addresses in it.

    ``size`` is None for an ``.extern .shared`` array whose size the launch gives.
    """

    name: str
    space: str
    align: int
    size: int | None
    type: str
    initial: bytes | None = None
    symbols: tuple[tuple[int, str], ...] = ()
    line: int = 0


@dataclass
class FunctionIR:
    """One ``.entry`` or ``.func``. ``labels`` maps a label to the index in ``body`` that it stands before."""

    name: str
    is_entry: bool
    line: int
    parameters: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class ModuleIR:
    """A parsed PTX text."""

    version: str
    target: str
    lines: list[str]
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, FunctionIR] = field(default_factory=dict)
