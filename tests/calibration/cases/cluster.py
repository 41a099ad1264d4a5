"""Distributed shared memory: addresses as relations, loads, stores and atomics of others. PTX ISA manual, "mapa"."""

from __future__ import annotations

from collections.abc import Iterator

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Case, Output
from tests.calibration.cases.program import element, program
from tests.calibration.inputs import random_bits

_SIZE, _THREADS = 4, 64
_LAUNCH = LaunchConfig((2 * _SIZE, 1, 1), (_THREADS, 1, 1), 1024, cluster=(_SIZE, 1, 1))
_COUNT = 2 * _SIZE * _THREADS


def cases() -> Iterator[Case]:
    yield _addresses()
    yield _exchange()
    yield _atomics()


def _start() -> str:
    return f""".reg .b32 %rank, %other, %block, %index, %base, %mine, %there, %x, %d;
.reg .b64 %generic, %far;
.reg .pred %p;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %block, %ctaid.x;
mad.lo.u32 %index, %block, {_THREADS}, %t;
mov.u32 %base, window;
mad.lo.u32 %mine, %t, 4, %base;
add.u32 %other, %rank, %t;
and.b32 %other, %other, {_SIZE - 1};
"""


def _meet() -> str:
    return "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"


def _addresses() -> Case:
    """Ranks of mapped addresses, their distances within a block, and which state spaces they are in."""
    facts = {
        "rank of 32-bit": "mapa.shared::cluster.u32 %there, %mine, %other;\ngetctarank.shared::cluster.u32 %d, %there;",
        "rank of generic": "mapa.u64 %far, %generic, %other;\ngetctarank.u64 %d, %far;",
        "offset": """mapa.shared::cluster.u32 %there, %mine, %other;
mapa.shared::cluster.u32 %x, %base, %other;
sub.u32 %d, %there, %x;""",
        "spaces": """mapa.u64 %far, %generic, %other;
isspacep.shared::cluster %p, %far;
selp.u32 %d, 1, 0, %p;
isspacep.shared::cluster %p, %generic;
selp.u32 %x, 2, 0, %p;
or.b32 %d, %d, %x;
isspacep.shared::cta %p, %generic;
selp.u32 %x, 4, 0, %p;
or.b32 %d, %d, %x;
isspacep.global %p, %far;
selp.u32 %x, 8, 0, %p;
or.b32 %d, %d, %x;""",
    }  # fmt: skip
    stores = "".join(
        f"{text}\n{element('%a0', f'%o{place}', '%index', 4)}st.global.b32 [%a0], %d;\n"
        for place, text in enumerate(facts.values())
    )
    body = f"{_start()}cvt.u64.u32 %generic, %mine;\ncvta.shared.u64 %generic, %generic;\n{stores}"
    return program("addresses", body, (), [Output(name, "u32", _COUNT) for name in facts], _LAUNCH)


def _exchange() -> Case:
    """Every thread reads from another block, by 32-bit and by generic address, and writes to it."""
    body = f"""{_start()}{element("%a0", "%i0", "%index", 4)}ld.global.b32 %x, [%a0];
st.shared.b32 [%mine], %x;
{_meet()}mapa.shared::cluster.u32 %there, %mine, %other;
ld.shared::cluster.b32 %d, [%there];
{element("%a0", "%o0", "%index", 4)}st.global.b32 [%a0], %d;
cvt.u64.u32 %generic, %mine;
cvta.shared.u64 %generic, %generic;
mapa.u64 %far, %generic, %other;
ld.b32 %d, [%far];
{element("%a0", "%o1", "%index", 4)}st.global.b32 [%a0], %d;
st.shared::cluster.b32 [%there+512], %index;
{_meet()}ld.shared.b32 %d, [%mine+512];
{element("%a0", "%o2", "%index", 4)}st.global.b32 [%a0], %d;
"""
    outputs = [Output(name, "u32", _COUNT) for name in ("read", "read generic", "written")]
    return program("exchange", body, (random_bits("exchange", _COUNT, 4),), outputs, _LAUNCH)


def _atomics() -> Case:
    """All threads of a cluster add to words of all its blocks."""
    body = f"""{_start()}st.shared.b32 [%mine], %t;
{_meet()}mapa.shared::cluster.u32 %there, %base, %other;
and.b32 %x, %t, 28;
add.u32 %there, %there, %x;
red.shared::cluster.add.u32 [%there], %index;
red.shared::cluster.max.s32 [%there+128], %index;
{_meet()}ld.shared.b32 %d, [%mine];
{element("%a0", "%o0", "%index", 4)}st.global.b32 [%a0], %d;
"""
    return program("atomics", body, (), (Output("shared", "u32", _COUNT),), _LAUNCH)
