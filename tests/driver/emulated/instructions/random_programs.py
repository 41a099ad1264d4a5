"""Random PTX bodies with nested branches, loops and guards over every kind of register, for metamorphic tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

REGISTERS = {
    "r": (".b32", 6),
    "f": (".f32", 4),
    "d": (".f64", 2),
    "l": (".b64", 3),
    "h": (".b16", 3),
    "p": (".pred", 3),
}

#: Templates: the first letter is the destination's kind, the rest the sources', in the order of the braces.
OPERATIONS = [
    ("rrr", "add.u32 {}, {}, {};"),
    ("rrr", "sub.s32 {}, {}, {};"),
    ("rrrr", "mad.lo.s32 {}, {}, {}, {};"),
    ("rrr", "mul.hi.u32 {}, {}, {};"),
    ("rrrr", "lop3.b32 {}, {}, {}, {}, 0x6A;"),
    ("rrrr", "lop3.b32 {}, {}, {}, {}, 0xF0;"),
    ("rrr", "shf.l.wrap.b32 {}, {}, {}, 9;"),
    ("rrr", "shl.b32 {}, {}, {};"),
    ("rrr", "shr.s32 {}, {}, {};"),
    ("rrrr", "prmt.b32 {}, {}, {}, {};"),
    ("rrr", "prmt.b32 {}, {}, {}, 0x3210;"),
    ("rr", "mov.b32 {}, {};"),
    ("rr", "popc.b32 {}, {};"),
    ("rr", "brev.b32 {}, {};"),
    ("rrr", "min.s32 {}, {}, {};"),
    ("rr", "bfe.s32 {}, {}, 5, 9;"),
    ("rrrp", "selp.b32 {}, {}, {}, {};"),
    ("rrr", "add.f16x2 {}, {}, {};"),
    ("rf", "cvt.rzi.s32.f32 {}, {};"),
    ("rl", "cvt.u32.u64 {}, {};"),
    ("rh", "cvt.s32.s16 {}, {};"),
    ("rff", "cvt.rn.bf16x2.f32 {}, {}, {};"),
    ("fff", "add.f32 {}, {}, {};"),
    ("fff", "mul.ftz.f32 {}, {}, {};"),
    ("ffff", "fma.rn.f32 {}, {}, {}, {};"),
    ("ffff", "fma.rz.f32 {}, {}, {}, {};"),
    ("fff", "max.f32 {}, {}, {};"),
    ("ff", "neg.f32 {}, {};"),
    ("ff", "cvt.rni.f32.f32 {}, {};"),
    ("ff", "cvt.sat.f32.f32 {}, {};"),
    ("ff", "mov.f32 {}, {};"),
    ("ff", "ex2.approx.f32 {}, {};"),
    ("ff", "rcp.approx.f32 {}, {};"),
    ("fr", "cvt.rn.f32.s32 {}, {};"),
    ("fd", "cvt.rn.f32.f64 {}, {};"),
    ("ffp", "selp.f32 {}, {}, 0f3F800000, {};"),
    ("ddd", "add.f64 {}, {}, {};"),
    ("dddd", "fma.rn.f64 {}, {}, {}, {};"),
    ("df", "cvt.f64.f32 {}, {};"),
    ("dr", "cvt.rn.f64.u32 {}, {};"),
    ("dd", "mov.f64 {}, {};"),
    ("lll", "add.s64 {}, {}, {};"),
    ("lrr", "mul.wide.u32 {}, {}, {};"),
    ("lrrl", "mad.wide.s32 {}, {}, {}, {};"),
    ("lrr", "mov.b64 {}, {{{}, {}}};"),
    ("llr", "shr.u64 {}, {}, {};"),
    ("lr", "cvt.s64.s32 {}, {};"),
    ("hhh", "add.s16 {}, {}, {};"),
    ("hr", "cvt.u16.u32 {}, {};"),
    ("hf", "cvt.rn.f16.f32 {}, {};"),
    ("hh", "mov.b16 {}, {};"),
    ("prr", "setp.lt.s32 {}, {}, {};"),
    ("pff", "setp.geu.f32 {}, {}, {};"),
    ("prrp", "setp.ne.and.u32 {}, {}, {}, {};"),
    ("pll", "setp.gt.s64 {}, {}, {};"),
    ("ppp", "xor.pred {}, {}, {};"),
]


@dataclass
class RandomProgram:
    """One body: `text` reads inputs %x0 %x1 (u32) and %y (f32) and leaves every register in an output.

    Outputs are the registers themselves; kinds and counts are in REGISTERS. ``exact`` leaves out approximations.
    """

    rng: np.random.Generator
    exact: bool = False
    lines: list[str] = field(default_factory=list)
    labels: int = 0

    def body(self, statements: int) -> str:
        self._initialise()
        self._block(statements, depth=0)
        return "\n".join(self.lines)

    def _initialise(self) -> None:
        self.lines += [f".reg .b32 %c<{4}>;"]
        for kind, (_, count) in REGISTERS.items():
            for place in range(count):
                self.lines.append(_FIRST[kind].format(f"%{kind}{place}", place=place + 1))

    def _block(self, statements: int, depth: int) -> None:
        while statements > 0:
            choice = self.rng.random()
            inner = int(self.rng.integers(2, 7))
            if depth < 3 and choice < 0.08:
                self._branch(inner, depth)
                statements -= inner
            elif depth < 3 and choice < 0.14:
                self._loop(inner, depth)
                statements -= inner
            else:
                self._operation()
                statements -= 1

    def _operation(self) -> None:
        operations = [operation for operation in OPERATIONS if not (self.exact and "approx" in operation[1])]
        kinds, template = operations[self.rng.integers(len(operations))]
        guard = ""
        if self.rng.random() < 0.25:
            guard = f"@{'!' * int(self.rng.integers(2))}{self._register('p')} "
        self.lines.append(guard + template.format(*(self._register(kind) for kind in kinds)))

    def _branch(self, statements: int, depth: int) -> None:
        """if (p) {...} else {...}"""
        other, end = self._label(), self._label()
        self.lines.append(f"@{self._register('p')} bra {other};")
        self._block(statements, depth + 1)
        self.lines += [f"bra {end};", f"{other}:"]
        self._block(statements, depth + 1)
        self.lines.append(f"{end}:")

    def _loop(self, statements: int, depth: int) -> None:
        """A loop of 0 to 3 turns, by lane, with a way out in the middle."""
        top, end, counter = self._label(), self._label(), f"%c{depth}"
        self.lines += [f"and.b32 {counter}, {self._register('r')}, 3;", f"{top}:"]
        self.lines += [f"setp.eq.u32 %p0, {counter}, 0;", f"@%p0 bra {end};", f"sub.u32 {counter}, {counter}, 1;"]
        self._block(statements, depth + 1)
        self.lines.append(f"@{self._register('p')} bra {top};")
        self._block(statements // 2, depth + 1)
        self.lines += [f"bra {top};", f"{end}:"]

    def _register(self, kind: str) -> str:
        return f"%{kind}{self.rng.integers(REGISTERS[kind][1])}"

    def _label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"


_FIRST = {
    "r": "mad.lo.u32 {}, %x0, {place}, %x1;",
    "f": "fma.rn.f32 {}, %y, 0f40400000, 0f3F000000;",
    "d": "cvt.f64.f32 {}, %y;",
    "l": "mul.wide.u32 {}, %x0, {place};",
    "h": "cvt.u16.u32 {}, %x1;",
    "p": "setp.gt.u32 {}, %x0, {place};",
}
