"""Parts of the cases of asynchronous copies: a window of shared memory, a barrier to wait at, and copies of it."""

from __future__ import annotations

THREADS = 128
#: The barrier lies in the last bytes of the window.
BARRIER_BYTES = 16
REGISTERS = """
.reg .b32 %x<4>, %at, %from, %base, %bar, %n;
.reg .b64 %wide, %token;
.reg .pred %p, %q, %first;
setp.eq.u32 %first, %t, 0;
mov.u32 %base, window;
"""


def fill(base: str, size_bytes: int) -> str:
    """``size_bytes`` (a multiple of 16 * THREADS) from the address ``base`` to the window."""
    return f"""shl.b32 %at, %t, 4;
add.u32 %from, %base, %at;
mul.wide.u32 %wide, %at, 1;
add.u64 %a1, {base}, %wide;
FILL:
ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%a1];
st.shared.v4.b32 [%from], {{%x0, %x1, %x2, %x3}};
add.u64 %a1, %a1, {16 * THREADS};
add.u32 %from, %from, {16 * THREADS};
add.u32 %at, %at, {16 * THREADS};
setp.lt.u32 %q, %at, {size_bytes};
@%q bra FILL;
fence.proxy.async;
bar.sync 0;
"""


def keep(base: str, size_bytes: int) -> str:
    """The window's ``size_bytes`` (a multiple of 16 * THREADS) to the address ``base``."""
    return f"""shl.b32 %at, %t, 4;
add.u32 %from, %base, %at;
mul.wide.u32 %wide, %at, 1;
add.u64 %a1, {base}, %wide;
KEEP:
ld.shared.v4.b32 {{%x0, %x1, %x2, %x3}}, [%from];
st.global.v4.b32 [%a1], {{%x0, %x1, %x2, %x3}};
add.u64 %a1, %a1, {16 * THREADS};
add.u32 %from, %from, {16 * THREADS};
add.u32 %at, %at, {16 * THREADS};
setp.lt.u32 %q, %at, {size_bytes};
@%q bra KEEP;
"""


def barrier(place_bytes: int, count: int = 1) -> str:
    """%bar: an mbarrier at ``place_bytes`` of the window, for ``count`` arrivals."""
    return f"""add.u32 %bar, %base, {place_bytes};
@%first mbarrier.init.shared.b64 [%bar], {count};
@%first fence.mbarrier_init.release.cluster;
bar.sync 0;
"""


def wait(parity: int = 0) -> str:
    """All threads wait for the phase of ``parity``."""
    return f"""WAIT{parity}:
mbarrier.try_wait.parity.shared.b64 %p, [%bar], {parity};
@!%p bra WAIT{parity};
"""


FLUSH = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"
