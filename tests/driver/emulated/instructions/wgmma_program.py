"""Kernels of one wgmma chain: matrices laid out in shared memory by the manual's tiles, descriptors, fragments.

Written from the pictures of the PTX ISA manual ("Shared Memory Matrix Layout"), by element and byte address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.driver.emulated.conftest import Bench
from tests.driver.emulated.instructions.lane_program import assemble

#: Bytes of a row of the swizzle pattern -> mode in the descriptor.
MODES = {16: 0, 128: 1, 64: 2, 32: 3}
OFFSET_B = 32768
SHARED_BYTES = 98304
# -- lane -> row and first column of its accumulators
WARP, GROUP, PAIR = np.arange(128) // 32, np.arange(128) % 32 // 4, np.arange(128) % 4


@dataclass(frozen=True)
class Layout:
    """How a [rows, depth] matrix lies in shared memory: ``span`` bytes in a row of the pattern (16: not swizzled)."""

    span: int = 16
    mn_major: bool = False

    def image(self, matrix: np.ndarray) -> np.ndarray:
        """The bytes of the matrix, tile after tile."""
        rows, depth = matrix.shape
        size = matrix.dtype.itemsize
        row, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
        inner, outer, inner_extent = (row, k, rows) if self.mn_major else (k, row, depth)
        per_line = self.span // size
        tile = outer // 8 * -(-inner_extent // per_line) + inner // per_line
        byte = tile * 8 * self.span + outer % 8 * self.span + inner % per_line * size
        if self.span > 16:
            byte ^= (byte >> 7 & self.span // 16 - 1) << 4
        image = np.zeros(int(byte.max()) + size, dtype=np.uint8)
        data = np.ascontiguousarray(matrix)[..., None].view(np.uint8)
        image[byte[..., None] + np.arange(size)] = data
        return image

    def descriptor(self, rows: int, depth: int, size: int) -> int:
        """Everything but the start address."""
        tile = 8 * self.span
        inner = (rows if self.mn_major else depth) * size
        along_inner, along_outer = tile, tile * -(-inner // self.span)
        leading, stride = along_inner, along_outer
        if self.mn_major and self.span == 16:
            leading, stride = along_outer, along_inner
        return leading >> 4 << 16 | stride >> 4 << 32 | MODES[self.span] << 62

    def start(self, step: int, rows: int, size: int) -> int:
        """Where a step of 32 bytes of K begins, in bytes."""
        if self.mn_major:
            return step * 2 * 8 * self.span * -(-rows * size // self.span)
        tile, rest = divmod(32 * step, self.span)
        return tile * 8 * self.span + rest


@dataclass(frozen=True)
class Chain:
    """``steps`` wgmmas along K. ``a_layout`` None: A is in registers. ``start``: D's bits before; None: the first
    wgmma overwrites D. ``kind``: the registers of D."""

    n: int
    d: str
    a: str
    b: str
    depth: int
    size: int
    steps: int
    a_layout: Layout | None = Layout()
    b_layout: Layout = Layout()
    scale_a: int = 1
    scale_b: int = 1
    satfinite: bool = False
    start: int | None = None
    kind: str = ""

    @property
    def registers(self) -> int:
        return self.n // (4 if self.d == "f16" else 2)

    def run(
        self,
        bench: Bench,
        a: np.ndarray,
        b: np.ndarray,
        policy: str = "lockstep",
        ctas: int = 2,
        edit: Callable[[str], str] = str,
    ) -> np.ndarray:
        """D [ctas, 64, n] of a [64, K] and b [n, K], stored in the types' own bits. ``edit`` changes the PTX."""
        shared = np.zeros(SHARED_BYTES, dtype=np.uint8)
        fragments = np.zeros(1, dtype=np.uint32)
        first = 0
        if self.a_layout is not None:
            image = self.a_layout.image(a)
            shared[: image.size] = image
            first = self.a_layout.descriptor(64, a.shape[1], self.size)
        else:
            fragments = self._fragments(a)
        image = self.b_layout.image(b)
        shared[OFFSET_B : OFFSET_B + image.size] = image
        second = self.b_layout.descriptor(self.n, b.shape[1], self.size) | OFFSET_B >> 4
        text = edit(self.ptx())
        assemble(text)
        out = bench.empty(ctas * 128 * self.registers * 4)
        arguments = (bench.put(shared), bench.put(fragments), np.uint64(first), np.uint64(second), out)
        bench.run(bench.machine.load(text), "k", ctas, 128, *arguments, shared=SHARED_BYTES, policy=policy)
        return self._matrix(bench.get(out, (ctas, 128, self.registers), np.uint32))

    def ptx(self) -> str:
        kind = self.kind or {"f32": "f32", "s32": "b32", "f16": "b32"}[self.d]
        stores = "\n".join(f"st.global.b32 [%o+{4 * i}], %d{i};" for i in range(self.registers))
        loads = "" if self.a_layout else self._load_fragments()
        return f"""
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 tile[];
.visible .entry k(.param .u64 image, .param .u64 fragments, .param .u64 first, .param .u64 second, .param .u64 out)
{{
.reg .pred %p; .reg .b32 %t, %s, %c, %w<4>, %a<{4 * self.steps + 1}>; .reg .b64 %x, %o, %v, %da, %db, %sa, %sb;
.reg .{kind} %d<{self.registers}>;
mov.u32 %t, %tid.x; mov.u32 %s, tile; shl.b32 %w0, %t, 4; add.u32 %s, %s, %w0;
ld.param.u64 %x, [image]; cvt.u64.u32 %v, %w0; add.u64 %x, %x, %v; mov.u32 %c, 0;
copy:
ld.global.v4.b32 {{%w0, %w1, %w2, %w3}}, [%x]; st.shared.v4.b32 [%s], {{%w0, %w1, %w2, %w3}};
add.u64 %x, %x, 2048; add.u32 %s, %s, 2048; add.u32 %c, %c, 2048;
setp.lt.u32 %p, %c, {SHARED_BYTES}; @%p bra copy;
fence.proxy.async;
bar.sync 0;
{loads}
mov.u32 %s, tile; shr.u32 %s, %s, 4; cvt.u64.u32 %v, %s;
ld.param.u64 %da, [first]; add.u64 %da, %da, %v; ld.param.u64 %db, [second]; add.u64 %db, %db, %v;
{self._begin()}
wgmma.fence.sync.aligned;
{self._products()}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mov.u32 %c, %ctaid.x; mad.lo.u32 %t, %c, 128, %t; mul.wide.u32 %v, %t, {4 * self.registers};
ld.param.u64 %o, [out]; add.u64 %o, %o, %v;
{stores}
ret;
}}
"""

    def _begin(self) -> str:
        return "" if self.start is None else "\n".join(f"mov.b32 %d{i}, {self.start};" for i in range(self.registers))

    def _load_fragments(self) -> str:
        count = 4 * self.steps
        loads = "\n".join(f"ld.global.b32 %a{i}, [%x+{4 * i}];" for i in range(count))
        return f"ld.param.u64 %x, [fragments]; mul.wide.u32 %v, %t, {4 * count}; add.u64 %x, %x, %v;\n{loads}"

    def _products(self) -> str:
        results = ",".join(f"%d{i}" for i in range(self.registers))
        flags = [] if self.d == "s32" else [str(self.scale_a), str(self.scale_b)]
        if self.a in ("f16", "bf16"):
            flags += [str(int(self.a_layout.mn_major))] if self.a_layout else []
            flags.append(str(int(self.b_layout.mn_major)))
        opcode = f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.depth}{'.satfinite' * self.satfinite}"
        lines = []
        for step in range(self.steps):
            factor = "%sa" if self.a_layout else "{" + ",".join(f"%a{4 * step + i}" for i in range(4)) + "}"
            operands = ", ".join([f"{{{results}}}", factor, "%sb", "%p", *flags])
            if self.a_layout:
                lines.append(f"add.u64 %sa, %da, {self.a_layout.start(step, 64, self.size) >> 4};")
            lines.append(f"add.u64 %sb, %db, {self.b_layout.start(step, self.n, self.size) >> 4};")
            unset = 0 if self.start is None else -1
            lines.append(f"setp.ne.u32 %p, {step}, {unset};\n{opcode}.{self.d}.{self.a}.{self.b} {operands};")
        return "\n".join(lines)

    def _fragments(self, a: np.ndarray) -> np.ndarray:
        """[128, 4 * steps] registers of A."""
        e = 4 // self.size
        registers = []
        for step in range(self.steps):
            for r in range(4):
                row = 16 * WARP + GROUP + 8 * (r % 2)
                column = self.depth * step + 4 * e * (r // 2) + e * PAIR
                parts = np.ascontiguousarray(np.stack([a[row, column + j] for j in range(e)], axis=-1))
                registers.append(parts.view(np.uint32)[:, 0])
        return np.ascontiguousarray(np.stack(registers, axis=-1))

    def _matrix(self, registers: np.ndarray) -> np.ndarray:
        dtype: Any = {"f32": np.float32, "s32": np.int32, "f16": np.float16}[self.d]
        values = registers.view(dtype)
        matrix = np.empty((len(registers), 64, self.n), dtype=dtype)
        for i in range(values.shape[2]):
            matrix[:, 16 * WARP + GROUP + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * PAIR + i % 2] = values[:, :, i]
        return matrix
