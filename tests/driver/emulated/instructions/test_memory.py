"""Loads, stores, copies and address forms, one instruction at a time; faults and lateness have tests of their own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes

LANES = 64
#: %base becomes the address of the lane's element of the first input.
MINE = "ld.param.b64 %base, [p0]; mul.wide.u32 %offset, %lane, {size}; add.u64 %base, %base, %offset;"
LOADS = [
    "ld.global",
    "ld.weak.global",
    "ld.global.ca",
    "ld.global.cg",
    "ld.global.cs",
    "ld.global.cv",
    "ld.volatile.global",
    "ld.relaxed.gpu.global",
    "ld.acquire.sys.global",
    "ld.global.nc",
    "ld.global.nc.L1::no_allocate.L2::256B",
    "ld.global.L1::evict_last",
    "ldu.global",
    "ld",
]
STORES = [
    "st.global",
    "st.global.wb",
    "st.global.cg",
    "st.global.cs",
    "st.global.wt",
    "st.volatile.global",
    "st.relaxed.cta.global",
    "st.release.gpu.global",
    "st.global.L1::no_allocate",
    "st",
]


def words(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 1 << 32, LANES, dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize("form", LOADS)
def test_loads_of_every_cache_operator(lanes: Lanes, rng: np.random.Generator, form: str) -> None:
    a = words(rng)
    body = MINE.format(size=4) + f"{form}.u32 %d, [%base]; {form}.v2.u16 {{%l, %h}}, [%base];"
    outputs = {"%d": np.uint32, "%l": np.uint16, "%h": np.uint16}
    word, low, high = lanes.run(body, {"%a": a}, outputs, mixed=False)
    np.testing.assert_array_equal(word, a)
    np.testing.assert_array_equal(low, a.astype(np.uint16))
    np.testing.assert_array_equal(high, a >> np.uint32(16))


@pytest.mark.parametrize("form", STORES)
def test_stores_of_every_cache_operator(lanes: Lanes, rng: np.random.Generator, form: str) -> None:
    a, b = words(rng), words(rng)
    body = MINE.format(size=4) + f"{form}.u32 [%base], %b; ld.global.u32 %d, [%base];"
    (stored,) = lanes.run(body, {"%a": a, "%b": b}, {"%d": np.uint32}, mixed=False)
    np.testing.assert_array_equal(stored, b)


def test_narrow_loads_extend_to_their_register(lanes: Lanes, rng: np.random.Generator) -> None:
    a = words(rng)
    body = (
        MINE.format(size=4)
        + """
    ld.global.u8 %u8, [%base+1]; ld.global.s8 %s8, [%base+1]; ld.global.b8 %b8, [%base+3];
    ld.global.u16 %u16, [%base+2]; ld.global.s16 %s16, [%base+2];
    ld.global.s8 %long, [%base]; ld.global.u8 %half, [%base]; ld.global.s32 %wide, [%base];
    """
    )
    outputs = {f"%{name}": np.uint32 for name in ("u8", "s8", "b8", "u16", "s16")}
    outputs |= {"%long": np.int64, "%half": np.uint16, "%wide": np.int64}
    results = dict(zip(outputs, lanes.run(body, {"%a": a}, outputs, mixed=False), strict=True))
    parts, halves = a.view(np.uint8).reshape(-1, 4), a.view(np.uint16).reshape(-1, 2)
    expected = {
        "%u8": parts[:, 1],
        "%s8": parts[:, 1].view(np.int8).astype(np.uint32),
        "%b8": parts[:, 3],
        "%u16": halves[:, 1],
        "%s16": halves[:, 1].view(np.int16).astype(np.uint32),
        "%long": parts[:, 0].view(np.int8),
        "%half": parts[:, 0],
        "%wide": a.view(np.int32),
    }
    for name, wanted in expected.items():
        np.testing.assert_array_equal(results[name], wanted, err_msg=name)


def test_narrow_stores_leave_their_neighbours(lanes: Lanes, rng: np.random.Generator) -> None:
    a, b = words(rng), words(rng)
    body = MINE.format(size=4) + "st.global.u8 [%base+2], %b; ld.global.u32 %d, [%base];"
    body += "cvt.u16.u32 %h, %b; st.global.u16 [%base], %h; ld.global.u32 %e, [%base];"
    outputs = {"%d": np.uint32, "%e": np.uint32, "%h": np.uint16}
    one, two, _ = lanes.run(body, {"%a": a, "%b": b}, outputs, mixed=False)
    expected = (a & np.uint32(0xFF00FFFF)) | (b & np.uint32(0xFF)) << np.uint32(16)
    np.testing.assert_array_equal(one, expected)
    np.testing.assert_array_equal(two, (expected & np.uint32(0xFFFF0000)) | (b & np.uint32(0xFFFF)))


def test_vectors_through_shared_memory_and_generic_addresses(lanes: Lanes, rng: np.random.Generator) -> None:
    """A 16-byte store to shared memory, read back through the generic window by the opposite lane."""
    inputs = {f"%x{place}": words(rng) for place in range(4)}
    body = f"""
    .shared .align 16 .b8 tile[{16 * LANES}];
    .reg .b32 %s; .reg .b64 %g; .reg .pred %shared, %global;
    mov.u32 %s, tile;
    mad.lo.u32 %s, %lane, 16, %s;
    st.shared.v4.b32 [%s], {{%x0, %x1, %x2, %x3}};
    bar.sync 0;
    mov.u64 %g, tile;
    cvta.shared.u64 %g, %g;
    isspacep.shared %shared, %g;
    isspacep.global %global, %g;
    sub.u32 %s, {LANES - 1}, %lane;
    mul.wide.u32 %offset, %s, 16;
    add.u64 %g, %g, %offset;
    ld.v2.b64 {{%low, %high}}, [%g];
    selp.u32 %spaces, 1, 0, %shared;
    @%global add.u32 %spaces, %spaces, 2;
    """
    outputs = {"%low": np.uint64, "%high": np.uint64, "%spaces": np.uint32}
    low, high, spaces = lanes.run(body, inputs, outputs, mixed=False)
    rows = np.stack(list(inputs.values()), axis=1).view(np.uint64)[::-1]
    np.testing.assert_array_equal(low, rows[:, 0])
    np.testing.assert_array_equal(high, rows[:, 1])
    assert (spaces == 1).all()


def test_local_memory_is_each_lanes_own(lanes: Lanes, rng: np.random.Generator) -> None:
    a, n = words(rng), rng.integers(0, 8, LANES).astype(np.uint32)
    body = """
    .local .align 8 .b8 mine[32];
    .reg .b64 %m, %g;
    mov.u64 %m, mine;
    mul.wide.u32 %offset, %n, 4;
    add.u64 %m, %m, %offset;
    st.local.u32 [%m], %a;
    cvta.local.u64 %g, %m;
    ld.u32 %d, [%g];
    """
    (read,) = lanes.run(body, {"%a": a, "%n": n}, {"%d": np.uint32})
    np.testing.assert_array_equal(read, a)


@pytest.mark.parametrize(("form", "size"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
@pytest.mark.parametrize("ignored", [False, True])
def test_asynchronous_copies(lanes: Lanes, rng: np.random.Generator, form: str, size: int, ignored: bool) -> None:
    """Bytes beyond the source size are zero; it differs by lane, and 0 copies nothing."""
    source = rng.integers(0, 1 << 63, (LANES, 2), dtype=np.int64).view(np.uint64)
    kept = rng.integers(0, size + 1, LANES).astype(np.uint32) if ignored else np.full(LANES, size, np.uint32)
    body = f"""
    .shared .align 16 .b8 tile[{16 * LANES}];
    .reg .b32 %s; .reg .b64 %zero;
    mov.u32 %s, tile; mad.lo.u32 %s, %lane, 16, %s; mov.u64 %zero, 0;
    st.shared.v2.b64 [%s], {{%zero, %zero}};
    st.global.v2.b64 [%place], {{%low, %high}};
    bar.sync 0;
    cp.async.{form}.shared.global [%s], [%place], {size}{", %kept" if ignored else ""};
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.v2.b64 {{%d, %e}}, [%s];
    """
    body = f"ld.param.b64 %base, [p3]; .reg .b64 %place; mad.wide.u32 %place, %lane, 16, %base;{body}"
    room = np.zeros((LANES, 2), np.uint64)
    inputs = {
        "%low": source[:, 0].copy(),
        "%high": source[:, 1].copy(),
        "%kept": kept,
        "%room": np.resize(room, LANES * 2),
    }
    low, high = lanes.execute(body, inputs, {"%d": np.uint64, "%e": np.uint64})
    parts = source.view(np.uint8).copy()
    parts[np.arange(16) >= np.minimum(kept, size)[:, None]] = 0
    np.testing.assert_array_equal(np.stack([low, high], axis=1).view(np.uint8), parts)


def test_what_has_no_effect_on_values(lanes: Lanes, rng: np.random.Generator) -> None:
    a = words(rng)
    body = (
        MINE.format(size=4)
        + """
    prefetch.global.L1 [%base]; prefetch.global.L2 [%base]; prefetchu.L1 [%base];
    membar.cta; membar.gl; membar.sys; fence.acq_rel.gpu; fence.sc.cta; nanosleep.u32 10;
    bar.warp.sync -1; barrier.sync 1; bar.sync 0; pmevent 3;
    mov.u32 %d, %a;
    """
    )
    (same,) = lanes.run(body, {"%a": a}, {"%d": np.uint32}, mixed=False)
    np.testing.assert_array_equal(same, a)


def test_special_registers(lanes: Lanes) -> None:
    names = ["tid.x", "tid.y", "ntid.x", "ctaid.x", "nctaid.x", "laneid", "lanemask_eq", "lanemask_lt", "lanemask_ge"]
    body = "".join(f"mov.u32 %r{place}, %{name};" for place, name in enumerate(names))
    outputs = {f"%r{place}": np.uint32 for place in range(len(names))}
    results = dict(zip(names, lanes.run(body, {"%a": np.zeros(LANES, np.uint32)}, outputs, mixed=False), strict=True))
    lane = np.arange(LANES, dtype=np.uint64) % np.uint64(32)
    bit = np.uint64(1) << lane
    expected = {
        "tid.x": np.arange(LANES),
        "tid.y": 0,
        "ntid.x": LANES,
        "ctaid.x": 0,
        "nctaid.x": 1,
        "laneid": lane,
        "lanemask_eq": bit,
        "lanemask_lt": bit - np.uint64(1),
        "lanemask_ge": np.uint64(0xFFFFFFFF) - (bit - np.uint64(1)),
    }
    for name, wanted in expected.items():
        np.testing.assert_array_equal(results[name], np.broadcast_to(wanted, LANES), err_msg=name)


def test_indexed_branches_and_reductions_at_a_barrier(lanes: Lanes, rng: np.random.Generator) -> None:
    a = words(rng)
    body = """
    .reg .b32 %i; .reg .pred %odd, %all;
    and.b32 %i, %a, 3;
    TARGETS: .branchtargets ZERO, ONE, TWO, THREE;
    brx.idx %i, TARGETS;
    ZERO: mov.u32 %d, 10; bra DONE;
    ONE: mov.u32 %d, 11; bra DONE;
    TWO: mov.u32 %d, 12; bra DONE;
    THREE: mov.u32 %d, 13;
    DONE:
    and.b32 %i, %a, 1; setp.ne.u32 %odd, %i, 0;
    bar.red.popc.u32 %e, 0, %odd;
    bar.red.and.pred %all, 0, %odd;
    selp.u32 %f, 1, 0, %all;
    """
    chosen, odd, every = lanes.run(body, {"%a": a}, {f"%{name}": np.uint32 for name in "def"}, mixed=False)
    np.testing.assert_array_equal(chosen, 10 + (a & np.uint32(3)))
    assert (odd == (a & np.uint32(1)).sum()).all()
    assert (every == (a & np.uint32(1)).all()).all()
