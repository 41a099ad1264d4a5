"""wgmma of every type: layouts of A and B in shared memory and registers, signs and scales, random numbers.

PTX ISA manual, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Shared memory is filled whole
with whole numbers, so that an element read from a wrong place shows in the sums. A launch tries many layouts, one in
each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import EXACT, Array, Bound, Case, Output
from tests.calibration.cases import numbers
from tests.calibration.cases.program import element, program
from tests.calibration.inputs import seeded

A_BYTES, _B_BYTES = 16 << 10, 48 << 10
_WINDOW = A_BYTES + _B_BYTES
_THREADS = 128
_ONE_HOT_PLACES = 16
_BYTE_FLOATS = ("e4m3", "e5m2")
_TYPES = (
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a in _BYTE_FLOATS for b in _BYTE_FLOATS),
    *(("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
)  # fmt: skip
#: One form of each size of elements and sums: these are tried with many widths, and with one-hot fragments.
_CHOSEN_TYPES = (
    ("f32", "bf16", "bf16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"), ("f32", "e4m3", "e5m2"),
    ("s32", "s8", "u8"),
)  # fmt: skip
#: Swizzle in bytes -> its number in a descriptor.
_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}
#: All products and C are aligned with the largest by exponent and cut below its leading bit. These bounds hold for sums
#: with random signs; each of the k + 1 cuts alone may reach 2**-25, of 8-bit floats 2**-13, of the largest term.
_CUT = Bound(of_magnitude=2.0**-21, source="terms are cut at 2**-25 of the largest")
_CUT_OF_BYTES = Bound(of_magnitude=2.0**-12, source="terms are cut at 2**-13 of the largest")


@dataclass(frozen=True)
class Layout:
    """How a descriptor finds a matrix: swizzle, strides and offset of the start, all in bytes."""

    swizzle: int
    leading: int
    stride: int
    start: int = 0

    def descriptor(self, offset: int) -> int:
        """Without the address of the window, which is added; the matrix lies ``offset`` bytes behind it."""
        strides = (self.leading >> 4) << 16 | (self.stride >> 4) << 32
        return (offset + self.start) >> 4 | strides | _SWIZZLES[self.swizzle] << 62


Pair = tuple[Layout, Layout]


@dataclass(frozen=True)
class Form:
    """One instruction. ``mn_a``, ``mn_b``: the matrix is MN-major in shared memory."""

    d: str
    a: str
    b: str
    n: int
    in_registers: bool = False
    mn_a: int = 0
    mn_b: int = 0
    scale_d: int = 1
    sign_a: int = 1
    sign_b: int = 1
    satfinite: str = ""

    @property
    def k(self) -> int:
        return 256 // numbers.BITS[self.a]

    @property
    def name(self) -> str:
        a = "registers" if self.in_registers else "mn" if self.mn_a else "k"
        signs = f"d{self.scale_d} a{self.sign_a} b{self.sign_b}{self.satfinite}"
        return f"n{self.n}.{self.d}.{self.a}.{self.b} {a} {'mn' if self.mn_b else 'k'} {signs}"

    def instruction(self, names: Sequence[str]) -> str:
        a = "{%ar0, %ar1, %ar2, %ar3}" if self.in_registers else "%da"
        operands = ["{" + ", ".join(names) + "}", a, "%db", "%p"]
        if self.d != "s32":
            operands += [str(self.sign_a), str(self.sign_b)]
        if numbers.BITS[self.a] == 16:
            operands += [str(self.mn_b)] if self.in_registers else [str(self.mn_a), str(self.mn_b)]
        types = f"{self.d}.{self.a}.{self.b}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}{self.satfinite}.{types} {', '.join(operands)};"


_PLAIN = Layout(128, 16, 1024)
_OTHER = Layout(32, 16, 768)
_K_MAJOR = (
    *(Layout(0, leading, stride) for leading, stride in ((128, 256), (1024, 128), (256, 512))),
    *(Layout(swizzle, 16, 8 * swizzle, start) for swizzle in (32, 64, 128) for start in range(0, swizzle, 32)),
    *(Layout(swizzle, 16, 16 * swizzle) for swizzle in (32, 64, 128)),
)
_MN_MAJOR = (
    *(Layout(0, leading, stride) for leading, stride in ((128, 256), (256, 128), (512, 1024))),
    *(Layout(swizzle, 16 * swizzle, 8 * swizzle) for swizzle in (32, 64, 128)),
    *(Layout(swizzle, 8 * swizzle, 64 * swizzle) for swizzle in (32, 64, 128)),
)


def cases() -> Iterator[Case]:
    plain = [(_PLAIN, _PLAIN)]
    sides = [(layout, _OTHER) for layout in _K_MAJOR] + [(_OTHER, layout) for layout in _K_MAJOR]
    for d, a, b in _TYPES:
        form = Form(d, a, b, 16)
        yield _whole(form, sides)
        yield _whole(replace(form, in_registers=True), [(_PLAIN, layout) for layout in _K_MAJOR])
        yield _whole(replace(form, scale_d=0), plain)
        if d == "s32":
            yield _whole(replace(form, satfinite=".satfinite"), plain)
        else:
            yield from (_whole(replace(form, sign_a=x, sign_b=y), plain) for x, y in ((-1, 1), (1, -1), (-1, -1)))
            yield from (_random(replace(form, n=64), spread) for spread in (3, 8))
    for d, a, b in _CHOSEN_TYPES:
        yield from (_whole(Form(d, a, b, n), plain) for n in (8, 24, 96, 192, 256))
        yield _one_hot(Form(d, a, b, 8, scale_d=0), [(layout, _OTHER) for layout in _K_MAJOR])
    yield from _mn_major()


def _mn_major() -> Iterator[Case]:
    """Only 16-bit elements have these layouts."""
    sides = [(_PLAIN, layout) for layout in _MN_MAJOR]
    for kind, widths in (("bf16", (8, 16, 40, 64, 136, 256)), ("f16", (80,))):
        yield _whole(Form("f32", kind, kind, 16, mn_a=1), [(layout, _PLAIN) for layout in _MN_MAJOR])
        yield from (_whole(Form("f32", kind, kind, n, mn_b=1), sides) for n in widths)
        yield _whole(Form("f32", kind, kind, 64, in_registers=True, mn_b=1), sides)
        both = [(a, b) for a in _MN_MAJOR[::3] for b in _MN_MAJOR[1::3]]
        yield _whole(Form("f32", kind, kind, 32, mn_a=1, mn_b=1), both)


def _whole(form: Form, layouts: Sequence[Pair]) -> Case:
    image = np.concatenate([_image(form.a, A_BYTES, form.name), _image(form.b, _B_BYTES, form.name)])
    c = numbers.whole(form.d, (_THREADS, form.n // 2), form.name, 7)
    if form.satfinite:
        c = np.where(c % 2 == 0, np.uint32(0x7FFFFFF0), np.uint32(0x80000010))
    registers = numbers.packed(numbers.whole(form.a, (_THREADS, 4 * 32 // numbers.BITS[form.a]), form.name), form.a)
    return _case(form, "whole", image[None], layouts, registers, numbers.packed(c, form.d), EXACT)


def _one_hot(form: Form, layouts: Sequence[Pair]) -> Case:
    """A different element of A's part of shared memory is 1 in each image, all others are 0."""
    width = numbers.BITS[form.a] // 8
    images = np.zeros((_ONE_HOT_PLACES, A_BYTES // width), f"u{width}")
    places = seeded(form.name).permutation(1024 // width)[:_ONE_HOT_PLACES]
    images[np.arange(_ONE_HOT_PLACES), places] = numbers.one(form.a)
    other = np.broadcast_to(_image(form.b, _B_BYTES, form.name), (_ONE_HOT_PLACES, _B_BYTES))
    image = np.concatenate([images.view(np.uint8), other], axis=1)
    return _case(form, "one-hot", image, layouts, np.zeros((_THREADS, 4), np.uint32), None, EXACT)


def _random(form: Form, spread: int) -> Case:
    """Numbers of either sign, so that sums cancel; ``spread`` binades let small terms meet large ones."""
    kinds = (("a", form.a, A_BYTES), ("b", form.b, _B_BYTES))
    parts = [
        numbers.near_one(kind, (8 * size // numbers.BITS[kind],), f"{spread}{side}{form.name}", min(spread, 6))
        for side, kind, size in kinds
    ]
    bare = [numbers.without_signs(one, kind) for one, (_, kind, _) in zip(parts, kinds, strict=True)]
    image, magnitudes = (np.concatenate([one.view(np.uint8) for one in version])[None] for version in (parts, bare))
    c = numbers.near_one(form.d, (_THREADS, form.n // 2), f"{spread}c{form.name}", spread)
    registers = np.zeros((_THREADS, 4), np.uint32)
    bound = _bound(form)
    layouts = [(_PLAIN, _PLAIN)]
    case = _case(form, f"random{spread}", image, layouts, registers, numbers.packed(c, form.d), bound)
    positive = numbers.packed(numbers.without_signs(c, form.d), form.d)
    return replace(case, magnitudes=(magnitudes.reshape(-1), *case.inputs[1:3], positive))


def _bound(form: Form) -> Bound:
    bound = _CUT_OF_BYTES if form.a in _BYTE_FLOATS else _CUT
    return replace(bound, relative=2.0**-10, absolute=2.0**-24) if form.d == "f16" else bound


def _image(kind: str, size_bytes: int, name: str) -> Array:
    count = 8 * size_bytes // numbers.BITS[kind]
    return numbers.whole(kind, (count,), f"{size_bytes}{name}").view(np.uint8)


def _case(
    form: Form, name: str, images: Array, layouts: Sequence[Pair], a: Array, c: Array | None, bound: Bound
) -> Case:
    """A block for each of ``layouts`` and of ``images`` [images, bytes], shared memory of A, then of B; ``a`` and
    ``c``: registers [threads, n]."""
    count = form.n // 4 if form.d == "f16" else form.n // 2
    names = [f"%d{i}" for i in range(count)]
    descriptors = np.array([(a.descriptor(0), b.descriptor(A_BYTES)) for a, b in layouts], np.uint64)
    inputs = [images.reshape(-1), a, descriptors] + ([] if c is None else [c])
    initial = "".join(f"mov.b32 {one}, 0;\n" for one in names)
    if c is not None:
        initial = element("%a0", "%i3", "%t", 4 * count)
        initial += "".join(f"ld.global.b32 {one}, [%a0+{4 * i}];\n" for i, one in enumerate(names))
    stores = "".join(f"st.global.b32 [%a0+{4 * i}], {one};\n" for i, one in enumerate(names))
    body = f"""
.reg .b32 %d<{count}>, %x<4>, %ar<4>, %at, %to, %block, %image, %row;
.reg .b64 %wide, %da, %db;
.reg .pred %p, %q;
mov.u32 %block, %ctaid.x;
rem.u32 %image, %block, {len(images)};
div.u32 %row, %block, {len(images)};
{_FILL}{element("%a0", "%i1", "%t", 16)}ld.global.v4.b32 {{%ar0, %ar1, %ar2, %ar3}}, [%a0];
{element("%a0", "%i2", "%row", 16)}ld.global.v2.b64 {{%da, %db}}, [%a0];
mov.u32 %to, window;
shr.u32 %to, %to, 4;
cvt.u64.u32 %wide, %to;
add.u64 %da, %da, %wide;
add.u64 %db, %db, %wide;
{initial}setp.ne.u32 %p, {form.scale_d}, 0;
wgmma.fence.sync.aligned;
{form.instruction(names)}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mad.lo.u32 %row, %block, {_THREADS}, %t;
{element("%a0", "%o0", "%row", 4 * count)}{stores}"""
    kind = {"f16": "f16x2", "s32": "u32"}.get(form.d, form.d)
    blocks = len(layouts) * len(images)
    launch = LaunchConfig((blocks, 1, 1), (_THREADS, 1, 1), _WINDOW)
    outputs = (Output("d", kind, blocks * _THREADS * count, bound),)
    return program(f"{form.name} {name}", body, inputs, outputs, launch)


#: The block's image from %i0 to the window, made visible to the asynchronous proxy.
_FILL = f"""mul.wide.u32 %wide, %image, {_WINDOW};
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
setp.lt.u32 %q, %at, {_WINDOW};
@%q bra FILL;
fence.proxy.async;
bar.sync 0;
"""
