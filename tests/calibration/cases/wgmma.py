"""wgmma of every type: layouts of A and B in shared memory and registers, signs and scales, random numbers.

PTX ISA manual, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Shared memory is filled whole
with whole numbers, so that an element read from a wrong place shows in the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import EXACT, Array, Bound, Case, Output
from tests.calibration.cases import numbers
from tests.calibration.cases.program import element, program
from tests.calibration.inputs import seeded

_A_BYTES, _B_BYTES = 16 << 10, 48 << 10
_THREADS = 128
_BYTE_FLOATS = ("e4m3", "e5m2")
_TYPES = (
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a in _BYTE_FLOATS for b in _BYTE_FLOATS),
    *(("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
)  # fmt: skip
#: Swizzle in bytes -> its number in a descriptor.
_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}
#: All products and C are aligned with the largest by exponent and cut below its leading bit. These bounds hold for sums
#: with random signs; each of the k + 1 cuts alone may reach 2**-25, of 8-bit floats 2**-13, of the largest term.
_CUT = Bound(of_magnitude=2.0**-21, source="terms are cut at 2**-25 of the largest")
_CUT_OF_BYTES = Bound(of_magnitude=2.0**-12, source="terms are cut at 2**-13 of the largest")


@dataclass(frozen=True)
class Layout:
    """How a descriptor finds a matrix: swizzle and strides in bytes, K- or MN-major, offset of the start in bytes."""

    swizzle: int
    leading: int
    stride: int
    transposed: bool = False
    start: int = 0

    @property
    def name(self) -> str:
        side = "mn" if self.transposed else "k"
        return f"{side}{self.swizzle}+{self.start}l{self.leading}s{self.stride}"


@dataclass(frozen=True)
class Form:
    """One instruction. ``a_layout`` None: A in registers. ``scale_d``, ``sign_a``, ``sign_b`` as in the instruction."""

    d: str
    a: str
    b: str
    n: int
    a_layout: Layout | None
    b_layout: Layout
    scale_d: int = 1
    sign_a: int = 1
    sign_b: int = 1
    satfinite: str = ""

    @property
    def k(self) -> int:
        return 256 // numbers.BITS[self.a]

    @property
    def name(self) -> str:
        a_layout = self.a_layout.name if self.a_layout else "registers"
        signs = f"d{self.scale_d}a{self.sign_a}b{self.sign_b}{self.satfinite}"
        return f"n{self.n}.{self.d}.{self.a}.{self.b} {a_layout} {self.b_layout.name} {signs}"


_PLAIN = Layout(128, 16, 1024)
_OTHER = Layout(32, 16, 768)


def cases() -> Iterator[Case]:
    for d, a, b in _TYPES:
        form = Form(d, a, b, 16, _PLAIN, _PLAIN)
        yield _whole(form)
        yield _whole(replace(form, a_layout=None))
        yield from (_whole(replace(form, n=n)) for n in (8, 32, 96, 192, 256))
        yield _whole(replace(form, scale_d=0))
        if d == "s32":
            yield _whole(replace(form, satfinite=".satfinite"))
        else:
            yield from (_whole(replace(form, sign_a=x, sign_b=y)) for x, y in ((-1, 1), (1, -1), (-1, -1)))
            yield _random(replace(form, n=64), 3)
            yield _random(replace(form, n=64), 8)
    for d, a, b in (("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"), ("s32", "s8", "s8"), ("f32", "e4m3", "e5m2")):
        for layout in _k_major():
            yield _whole(Form(d, a, b, 24, layout, _OTHER))
            yield _whole(Form(d, a, b, 24, _OTHER, layout))
            yield _one_hot(Form(d, a, b, 8, layout, _OTHER))
    for kind in ("bf16", "f16"):
        for layout in _mn_major():
            yield _whole(Form("f32", kind, kind, 16, layout, _PLAIN))
            yield from (_whole(Form("f32", kind, kind, n, _PLAIN, layout)) for n in (8, 16, 40, 64, 80, 136, 256))
            yield _whole(Form("f32", kind, kind, 64, None, layout))
        yield _whole(Form("f32", kind, kind, 64, Layout(128, 2048, 1024, True), Layout(64, 2048, 512, True)))


def _k_major() -> Iterator[Layout]:
    yield from (Layout(0, leading, stride) for leading, stride in ((128, 256), (1024, 128), (256, 512)))
    for swizzle in (32, 64, 128):
        yield from (Layout(swizzle, 16, 8 * swizzle, start=start) for start in range(0, swizzle, 32))
        yield Layout(swizzle, 16, 16 * swizzle)


def _mn_major() -> Iterator[Layout]:
    yield from (Layout(0, leading, stride, True) for leading, stride in ((128, 256), (256, 128), (512, 1024)))
    for swizzle in (32, 64, 128):
        yield Layout(swizzle, 16 * swizzle, 8 * swizzle, True)
        yield Layout(swizzle, 8 * swizzle, 64 * swizzle, True)


def _whole(form: Form) -> Case:
    image = np.concatenate([_image(form.a, _A_BYTES, form.name), _image(form.b, _B_BYTES, form.name)])
    c = numbers.whole("f32" if form.d == "f16" else form.d, (_THREADS, form.n // 2), form.name, 7)
    if form.d == "f16":
        c = numbers.packed(numbers.whole("f16", (_THREADS, form.n // 2), form.name, 7), "f16")
    if form.satfinite:
        c = np.where(c % 2 == 0, np.uint32(0x7FFFFFF0), np.uint32(0x80000010))
    registers = numbers.packed(numbers.whole(form.a, (_THREADS, 4 * 32 // numbers.BITS[form.a]), form.name), form.a)
    return _case(form, "whole", image[None], registers, c, EXACT)


def _one_hot(form: Form) -> Case:
    """A different element of A's part of shared memory is 1 in each block, all others are 0."""
    blocks = 64
    width = numbers.BITS[form.a] // 8
    images = np.zeros((blocks, _A_BYTES // width), f"u{width}")
    places = seeded(form.name).permutation(4096 // width)[:blocks]
    images[np.arange(blocks), places] = numbers.one(form.a)
    other = np.broadcast_to(_image(form.b, _B_BYTES, form.name), (blocks, _B_BYTES))
    image = np.concatenate([images.view(np.uint8), other], axis=1)
    return _case(replace(form, scale_d=0), "one-hot", image, np.zeros((_THREADS, 4), np.uint32), None, EXACT)


def _random(form: Form, spread: int) -> Case:
    """Numbers of either sign, so that sums cancel; ``spread`` binades let small terms meet large ones."""
    kinds = (("a", form.a, _A_BYTES), ("b", form.b, _B_BYTES))
    parts = [numbers.near_one(kind, (8 * size // numbers.BITS[kind],), f"{spread}{side}{form.name}", min(spread, 6))
             for side, kind, size in kinds]  # fmt: skip
    image, bare = (
        np.concatenate([one.view(np.uint8) for one in versions])[None]
        for versions in (
            parts,
            [numbers.without_signs(one, kind) for one, (_, kind, _) in zip(parts, kinds, strict=True)],
        )
    )
    c = numbers.near_one(form.d, (_THREADS, form.n // 2), f"{spread}c{form.name}", spread)
    magnitudes = numbers.packed(numbers.without_signs(c, form.d), form.d)
    registers = np.zeros((_THREADS, 4), np.uint32)
    case = _case(form, f"random{spread}", image, registers, numbers.packed(c, form.d), _bound(form))
    return replace(case, magnitudes=(bare.reshape(-1), registers, magnitudes))


def _bound(form: Form) -> Bound:
    bound = _CUT_OF_BYTES if form.a in _BYTE_FLOATS else _CUT
    return replace(bound, relative=2.0**-10, absolute=2.0**-24) if form.d == "f16" else bound


def _image(kind: str, size_bytes: int, name: str) -> Array:
    count = 8 * size_bytes // numbers.BITS[kind]
    return numbers.whole(kind, (count,), f"{size_bytes}{name}").view(np.uint8)


def _case(form: Form, name: str, images: Array, a: Array, c: Array | None, bound: Bound) -> Case:
    """``images`` [blocks, bytes]: shared memory of A, then of B; ``a`` and ``c``: registers [threads, n]."""
    blocks, total = images.shape
    count = form.n // 4 if form.d == "f16" else form.n // 2
    names = [f"%d{i}" for i in range(count)]
    inputs = [images.reshape(-1), a] + ([] if c is None else [c])
    loads = "mov.b32 {0}, 0;\n"
    initial = "".join(loads.format(one) for one in names)
    if c is not None:
        initial = element("%a0", "%i2", "%t", 4 * count)
        initial += "".join(f"ld.global.b32 {one}, [%a0+{4 * i}];\n" for i, one in enumerate(names))
    stores = "".join(f"st.global.b32 [%a0+{4 * i}], {one};\n" for i, one in enumerate(names))
    body = f"""
.reg .b32 %d<{count}>, %x<4>, %ar<4>, %at, %end, %to, %block, %row;
.reg .b64 %wide, %da, %db;
.reg .pred %p, %q;
mov.u32 %block, %ctaid.x;
{_fill(total)}{element("%a0", "%i1", "%t", 16)}ld.global.v4.b32 {{%ar0, %ar1, %ar2, %ar3}}, [%a0];
{initial}{_descriptor("%da", form.a_layout or form.b_layout, 0)}{_descriptor("%db", form.b_layout, _A_BYTES)}
setp.ne.u32 %p, {form.scale_d}, 0;
wgmma.fence.sync.aligned;
{_instruction(form, names)}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mad.lo.u32 %row, %block, {_THREADS}, %t;
{element("%a0", "%o0", "%row", 4 * count)}{stores}"""
    kind = {"f16": "f16x2", "s32": "u32"}.get(form.d, form.d)
    launch = LaunchConfig((blocks, 1, 1), (_THREADS, 1, 1), total)
    outputs = (Output("d", kind, blocks * _THREADS * count, bound),)
    return program(f"{form.name} {name}", body, inputs, outputs, launch)


def _fill(total: int) -> str:
    """The block's part of %i0 to the window, and made visible to the asynchronous proxy."""
    return f"""mul.wide.u32 %wide, %block, {total};
add.u64 %a1, %i0, %wide;
mov.u32 %to, window;
shl.b32 %at, %t, 4;
add.u32 %to, %to, %at;
mul.wide.u32 %wide, %at, 1;
add.u64 %a1, %a1, %wide;
FILL:
ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%a1];
st.shared.v4.b32 [%to], {{%x0, %x1, %x2, %x3}};
add.u64 %a1, %a1, {16 * _THREADS};
add.u32 %to, %to, {16 * _THREADS};
add.u32 %at, %at, {16 * _THREADS};
setp.lt.u32 %q, %at, {total};
@%q bra FILL;
fence.proxy.async;
bar.sync 0;
"""


def _descriptor(target: str, layout: Layout, offset: int) -> str:
    fixed = (layout.leading >> 4) << 16 | (layout.stride >> 4) << 32 | _SWIZZLES[layout.swizzle] << 62
    return f"""mov.u32 %to, window;
add.u32 %to, %to, {offset + layout.start};
and.b32 %to, %to, 0x3ffff;
shr.u32 %to, %to, 4;
cvt.u64.u32 {target}, %to;
or.b64 {target}, {target}, {fixed:#x};
"""


def _instruction(form: Form, names: list[str]) -> str:
    a = "%da" if form.a_layout else "{%ar0, %ar1, %ar2, %ar3}"
    operands = ["{" + ", ".join(names) + "}", a, "%db", "%p"]
    if form.d != "s32":
        operands += [str(form.sign_a), str(form.sign_b)]
    if numbers.BITS[form.a] == 16:
        operands += [str(int(form.a_layout.transposed))] if form.a_layout else []
        operands += [str(int(form.b_layout.transposed))]
    shape = f"m64n{form.n}k{form.k}"
    return f"wgmma.mma_async.sync.aligned.{shape}{form.satfinite}.{form.d}.{form.a}.{form.b} {', '.join(operands)};"
