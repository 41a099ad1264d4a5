"""Shuffles, votes, matches, reductions, elections, in whole and in partial warps. PTX ISA manual, "shfl.sync" etc."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Array, Case, Output
from tests.calibration.cases.program import element, program
from tests.calibration.inputs import random_bits, seeded

_FULL = 0xFFFFFFFF
#: Member masks; the lanes outside stay away.
_MASKS = (_FULL, 0x0000FFFF, 0xAAAAAAAA, 0x80000001, 0x00F0F3C6, 0x00000400)
_CONTROLS = (0x1F, 0x1C1F, 0x1803, 0x0C05, 0x0000, 0x100F, 0x1E1F)


def cases() -> Iterator[Case]:
    for mode in ("up", "down", "bfly", "idx"):
        yield _shuffles(mode)
    for mask in _MASKS:
        yield _collectives(mask)
    yield _divergent()
    yield _block_votes()


def _shuffles(mode: str) -> Case:
    """Block by block another c operand; warp by warp another lane operand, in the last four another in each lane.

    Sources are all active, so every result is defined.
    """
    warps = 32
    operand = np.tile(np.arange(warps, dtype=np.uint32)[:, None], (1, 32))
    operand[-4:] = seeded(mode).integers(0, 64, (4, 32), dtype=np.uint32)
    launch = LaunchConfig((len(_CONTROLS), 1, 1), (32 * warps, 1, 1))
    count = len(_CONTROLS) * warps * 32
    body = f"""
.reg .b32 %block, %index, %value, %operand, %control, %d, %found;
.reg .pred %p;
mov.u32 %block, %ctaid.x;
mad.lo.u32 %index, %block, {32 * warps}, %t;
{element("%a0", "%i0", "%t", 4)}ld.global.b32 %value, [%a0];
{element("%a0", "%i1", "%t", 4)}ld.global.b32 %operand, [%a0];
{element("%a0", "%i2", "%block", 4)}ld.global.b32 %control, [%a0];
shfl.sync.{mode}.b32 %d|%p, %value, %operand, %control, {_FULL};
selp.u32 %found, 1, 0, %p;
{element("%a0", "%o0", "%index", 4)}st.global.b32 [%a0], %d;
{element("%a0", "%o1", "%index", 4)}st.global.b32 [%a0], %found;
"""
    inputs = (random_bits(mode, 32 * warps, 4), operand.reshape(-1), np.array(_CONTROLS, np.uint32))
    return program(
        f"shfl-{mode}", body, inputs, (Output("value", "u32", count), Output("in-range", "u32", count)), launch
    )


def _collectives(mask: int) -> Case:
    """Every collective by the lanes of ``mask``, over several warps of values; the other lanes store nothing."""
    warps = 8
    values = _values(warps)
    forms = [
        (f"vote.sync.{mode}.pred", f"vote.sync.{mode}.pred %q, %p, {mask};\nselp.u32 %d, 1, 0, %q;")
        for mode in ("all", "any", "uni")
    ]
    forms.append(("vote.sync.ballot.b32", f"vote.sync.ballot.b32 %d, %p, {mask};"))
    forms.append(("match.any.sync.b32", f"match.any.sync.b32 %d, %value, {mask};"))
    forms.append(("match.any.sync.b64", f"match.any.sync.b64 %d, %wide, {mask};"))
    for width, register in (("b32", "%value"), ("b64", "%wide")):
        text = f"match.all.sync.{width} %d|%q, {register}, {mask};"
        forms += [(f"match.all.sync.{width}", text), (f"match.all.sync.{width} p", f"{text}\nselp.u32 %d, 1, 0, %q;")]
    forms += [
        (f"redux.sync.{op}.{kind}", f"redux.sync.{op}.{kind} %d, %value, {mask};")
        for kind in ("u32", "s32")
        for op in ("add", "min", "max")
    ]
    forms += [(f"redux.sync.{op}.b32", f"redux.sync.{op}.b32 %d, %value, {mask};") for op in ("and", "or", "xor")]
    forms.append(("elect.sync", f"elect.sync _|%q, {mask};\nselp.u32 %d, 1, 0, %q;"))
    forms.append(("elect.sync lane", f"elect.sync %d|%q, {mask};"))
    stores = "".join(
        f"{text}\n{element('%a0', f'%o{place}', '%t', 4)}st.global.b32 [%a0], %d;\n"
        for place, (_, text) in enumerate(forms)
    )
    body = f"""
.reg .b32 %lane, %bit, %value, %d;
.reg .b64 %wide;
.reg .pred %member, %p, %q;
mov.u32 %lane, %laneid;
shl.b32 %bit, 1, %lane;
and.b32 %bit, %bit, {mask};
setp.eq.u32 %member, %bit, 0;
@%member bra OUT;
{element("%a0", "%i0", "%t", 4)}ld.global.b32 %value, [%a0];
cvt.s64.s32 %wide, %value;
and.b32 %bit, %value, 1;
setp.ne.u32 %p, %bit, 0;
{stores}OUT:
"""
    outputs = [Output(label, "u32", 32 * warps) for label, _ in forms]
    return program(f"members-{mask:08x}", body, (values,), outputs, LaunchConfig((1, 1, 1), (32 * warps, 1, 1)))


def _divergent() -> Case:
    """Two halves of a branch each form their own group, with member masks held in registers."""
    body = f"""
.reg .b32 %lane, %mine, %other, %value, %d;
.reg .pred %p, %q;
mov.u32 %lane, %laneid;
{element("%a0", "%i0", "%t", 4)}ld.global.b32 %value, [%a0];
setp.lt.u32 %p, %lane, 11;
vote.sync.ballot.b32 %mine, %p, {_FULL};
not.b32 %other, %mine;
@%p bra LOW;
redux.sync.add.u32 %d, %value, %other;
bra STORE;
LOW:
redux.sync.max.u32 %d, %value, %mine;
STORE:
{element("%a0", "%o0", "%t", 4)}st.global.b32 [%a0], %d;
shfl.sync.idx.b32 %d|%q, %value, 5, 0x1f, {_FULL};
{element("%a0", "%o1", "%t", 4)}st.global.b32 [%a0], %d;
"""
    outputs = (Output("redux", "u32", 64), Output("shfl", "u32", 64))
    return program("divergent", body, (random_bits("divergent", 64, 4),), outputs, LaunchConfig((1, 1, 1), (64, 1, 1)))


def _block_votes() -> Case:
    """bar.red over blocks in which all, some or none of the threads agree, and over a part of the block's warps."""
    forms = {"popc": "popc.u32 %d, 0, %p;", "and": "and.pred %q, 0, %p;", "or": "or.pred %q, 0, %p;"}
    forms["popc of 64"] = "popc.u32 %d, 1, 64, %p;"
    text = ""
    for place, (name, form) in enumerate(forms.items()):
        part = name.endswith("64")
        skip = f"setp.ge.u32 %q, %t, 64;\n@%q bra SKIP{place};\n" if part else ""
        flag = "selp.u32 %d, 1, 0, %q;\n" if "%q" in form else ""
        text += f"{skip}barrier.red.aligned.{form}\n{flag}{element('%a0', f'%o{place}', '%index', 4)}"
        text += f"st.global.b32 [%a0], %d;\n{f'SKIP{place}:' if part else ''}\n"
    body = f"""
.reg .b32 %index, %block, %value, %d;
.reg .pred %p, %q;
mov.u32 %block, %ctaid.x;
mad.lo.u32 %index, %block, 128, %t;
{element("%a0", "%i0", "%index", 4)}ld.global.b32 %value, [%a0];
setp.ne.u32 %p, %value, 0;
{text}"""
    values = (random_bits("votes", 4 * 128, 4) % np.uint32(3)).reshape(4, 128).copy()
    values[1], values[2] = 1, 0
    outputs = [Output(name, "u32", 4 * 128) for name in forms]
    return program("barrier.red", body, (values,), outputs, LaunchConfig((4, 1, 1), (128, 1, 1)))


def _values(warps: int) -> Array:
    """A warp of one value, warps with few values, warps of random ones."""
    random = random_bits("warps", 32 * warps, 4).reshape(warps, 32).copy()
    random[0] = 7
    random[1] %= 3
    random[2] = np.where(np.arange(32) == 10, 5, 4)
    random[3] |= 1
    return random.reshape(-1)
