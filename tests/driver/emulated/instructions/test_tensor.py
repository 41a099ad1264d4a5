"""Matrix instructions through the machine: mma of every type, ldmatrix, stmatrix and movmatrix.

Each fragment is filled by the manual's formula, element by element, from whole matrices of small integers.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes

LANES = 64
WARPS = LANES // 32
GROUP, THREAD = np.arange(32) // 4, np.arange(32) % 4
Place = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def registers(matrices: np.ndarray, place: Place, kind: type) -> np.ndarray:
    """[warps, rows, columns] numbers as the registers [lanes, n] that hold them."""
    count = matrices[0].size // 32
    held = np.stack([matrices[:, *place(GROUP, THREAD, i)] for i in range(count)], axis=-1).astype(kind)
    held = held.reshape(LANES, count)
    return held if np.dtype(kind).itemsize >= 4 else np.ascontiguousarray(held).view(np.uint32)


def c_place(g: np.ndarray, t: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
    return g + 8 * (i // 2), 2 * t + i % 2


def a_place(e: int, rows: int) -> Place:
    """``e`` elements of a register lie side by side; registers go down first, then right by 4 * e columns."""
    down = rows // 8

    def place(g: np.ndarray, t: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
        register, element = divmod(i, e)
        return g + 8 * (register % down), 4 * e * (register // down) + e * t + element

    return place


def b_place(e: int) -> Place:
    def place(g: np.ndarray, t: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
        register, element = divmod(i, e)
        return 4 * e * register + e * t + element, g

    return place


FORMS = [
    ("m16n8k16", "bf16", "f32", ml_dtypes.bfloat16),
    ("m16n8k8", "bf16", "f32", ml_dtypes.bfloat16),
    ("m16n8k16", "f16", "f32", np.float16),
    ("m16n8k16", "f16", "f16", np.float16),
    ("m16n8k8", "f16", "f16", np.float16),
    ("m16n8k8", "tf32", "f32", np.float32),
    ("m16n8k4", "tf32", "f32", np.float32),
    ("m16n8k32", "s8", "s32", np.int8),
    ("m16n8k16", "u8", "s32", np.uint8),
    ("m8n8k16", "s8", "s32", np.int8),
    ("m16n8k32", "e4m3", "f32", ml_dtypes.float8_e4m3fn),
    ("m16n8k32", "e5m2", "f32", ml_dtypes.float8_e5m2),
    ("m16n8k16", "e4m3", "f32", ml_dtypes.float8_e4m3fn),
    ("m16n8k32", "e5m2", "f16", ml_dtypes.float8_e5m2),
    ("m16n8k16", "e4m3", "f16", ml_dtypes.float8_e4m3fn),
    ("m8n8k4", "f64", "f64", np.float64),
    ("m16n8k8", "f64", "f64", np.float64),
    ("m16n8k16", "f64", "f64", np.float64),
]
ACCUMULATORS = {"f32": np.float32, "s32": np.int32, "f64": np.float64, "f16": np.float16}


@pytest.mark.parametrize(("shape", "kind", "c_kind", "dtype"), FORMS, ids=["-".join(form[:3]) for form in FORMS])
def test_mma(lanes: Lanes, rng: np.random.Generator, shape: str, kind: str, c_kind: str, dtype: type) -> None:
    rows, depth = (int(part) for part in shape[1:].split("n8k"))
    low = 0 if kind == "u8" else -4
    a, b = rng.integers(low, 5, (WARPS, rows, depth)), rng.integers(low, 5, (WARPS, depth, 8))
    c = rng.integers(-100, 100, (WARPS, rows, 8))
    size = np.dtype(dtype).itemsize
    e = max(4 // size, 1)
    accumulator = ACCUMULATORS[c_kind]
    fragments = {
        "a": registers(a, a_place(e, rows), dtype),
        "b": registers(b, b_place(e), dtype),
        "c": registers(c, c_place, accumulator),
    }
    if kind == "tf32":
        fragments["a"], fragments["b"] = fragments["a"].view(np.uint32), fragments["b"].view(np.uint32)
    inputs = {f"%{name}{i}": held[:, i].copy() for name, held in fragments.items() for i in range(held.shape[1])}
    outputs = {f"%d{i}": fragments["c"].dtype.type for i in range(fragments["c"].shape[1])}

    def vector(name: str, count: int) -> str:
        return "{" + ",".join(f"%{name}{i}" for i in range(count)) + "}"

    operands = ", ".join([vector("d", len(outputs)), *(vector(n, fragments[n].shape[1]) for n in "abc")])
    body = f"mma.sync.aligned.{shape}.row.col.{c_kind}.{kind}.{kind}.{c_kind} {operands};"
    actual = np.stack(lanes.run(body, inputs, outputs), axis=1)
    np.testing.assert_array_equal(actual, registers(a @ b + c, c_place, accumulator))


def test_chains_of_products(lanes: Lanes, rng: np.random.Generator) -> None:
    """Two by two tiles that are summed over many steps, one of another type; on its way one sum is copied, and one
    register of another is changed."""
    kinds = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
    a, b = rng.integers(-4, 5, (2, WARPS, 16, 16)), rng.integers(-4, 5, (2, WARPS, 16, 8))
    inputs = {}
    for side, tiles, place in (("a", a, a_place(2, 16)), ("b", b, b_place(2))):
        for tile, matrix in enumerate(tiles):
            held = registers(matrix, place, kinds["bf16"])
            inputs |= {f"%{side}{tile}{i}": held[:, i].copy() for i in range(held.shape[1])}
    names = [f"%d{m}{n}{i}" for m in range(2) for n in range(2) for i in range(4)]
    lines = [f"mov.f32 {name}, 0f00000000;" for name in names]
    for step in range(19):
        if step == 11:
            lines += [f"mov.f32 %e{i}, %d01{i};" for i in range(4)]
            lines.append("add.f32 %d112, %d112, %d112;")
        kind = "f16" if step == 5 else "bf16"
        for m in range(2):
            for n in range(2):
                d = "{" + ",".join(f"%d{m}{n}{i}" for i in range(4)) + "}"
                left = "{" + ",".join(f"%a{m}{i}" for i in range(4)) + "}"
                lines.append(
                    f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {d}, {left}, {{%b{n}0,%b{n}1}}, {d};"
                )
    outputs = dict.fromkeys([*names, *(f"%e{i}" for i in range(4))], np.float32)
    results = dict(zip(outputs, lanes.run("\n".join(lines), inputs, outputs, mixed=False), strict=True))

    def expected(m: int, n: int, steps: int) -> np.ndarray:
        odd = [x.astype(kinds["bf16"]).view(kinds["f16"]).astype(np.float32) for x in (a[m], b[n])]
        return registers((steps - 1) * (a[m] @ b[n]) + odd[0] @ odd[1], c_place, np.float32)

    for m in range(2):
        for n in range(2):
            actual = np.stack([results[f"%d{m}{n}{i}"] for i in range(4)], axis=1)
            wanted = expected(m, n, 19)
            if (m, n) == (1, 1):
                wanted[:, 2] += expected(m, n, 11)[:, 2]
            np.testing.assert_array_equal(actual, wanted)
    np.testing.assert_array_equal(np.stack([results[f"%e{i}"] for i in range(4)], axis=1), expected(0, 1, 11))


def test_untyped_accumulators_are_bits(lanes: Lanes) -> None:
    """C comes in registers without a type, and goes through an integer instruction on its way."""
    inputs = {f"%{name}": np.full(LANES, 0x40003F80, np.uint32) for name in ("a0", "a1", "a2", "a3", "b0", "b1")}
    inputs |= {f"%c{i}": np.full(LANES, 0xBF800000, np.uint32) for i in range(4)}
    body = """
    xor.b32 %c0, %c0, 0x80000000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%d0,%d1,%d2,%d3}, {%a0,%a1,%a2,%a3}, {%b0,%b1},
      {%c0,%c1,%c2,%c3};
    xor.b32 %d3, %d3, 0x80000000;
    """
    results = lanes.run(body, inputs, {f"%d{i}": np.uint32 for i in range(4)})
    assert [set(result.view(np.float32)) for result in results] == [{41.0}, {39.0}, {39.0}, {-39.0}]


def test_integer_saturation(lanes: Lanes) -> None:
    names = [f"%{name}" for name in ("a0", "a1", "a2", "a3", "b0", "b1")]
    inputs = {name: np.full(LANES, 0x7F7F7F7F, np.uint32) for name in names}
    inputs |= {f"%c{i}": np.full(LANES, 2**31 - 5, np.int32) for i in range(4)}
    operands = "{%d0,%d1,%d2,%d3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {%c0,%c1,%c2,%c3}"
    body = f"mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {operands};"
    for result in lanes.run(body, inputs, {f"%d{i}": np.int32 for i in range(4)}):
        assert (result == 2**31 - 1).all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(lanes: Lanes, rng: np.random.Generator, count: int, transposed: bool) -> None:
    """Every lane stores two rows' worth of one warp's tile; rows are then loaded through per-lane addresses."""
    tile = rng.integers(0, 1 << 16, (WARPS, 4, 8, 8)).astype(np.uint16)
    inputs = {f"%x{i}": tile.view(np.uint32).reshape(LANES, 4)[:, i].copy() for i in range(4)}
    names = ",".join(f"%d{i}" for i in range(count))
    body = f"""
    .shared .align 16 .b8 tile[{LANES * 16}];
    .reg .b32 %row;
    mov.u32 %row, tile;
    mad.lo.u32 %row, %lane, 16, %row;
    st.shared.v4.b32 [%row], {{%x0,%x1,%x2,%x3}};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x{count}{".trans" if transposed else ""}.shared.b16 {{{names}}}, [%row];
    """
    results = lanes.run(body, inputs, {f"%d{i}": np.uint32 for i in range(count)}, mixed=False)
    for matrix, actual in enumerate(results):
        whole = tile[:, matrix].transpose(0, 2, 1) if transposed else tile[:, matrix]
        np.testing.assert_array_equal(actual, np.ascontiguousarray(whole).view(np.uint32).reshape(LANES))


@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_and_movmatrix(lanes: Lanes, rng: np.random.Generator, transposed: bool) -> None:
    matrix = rng.integers(0, 1 << 16, (WARPS, 8, 8)).astype(np.uint16)
    body = f"""
    .shared .align 16 .b8 tile[{WARPS * 128}];
    .reg .b32 %row, %tile, %l;
    shr.u32 %tile, %lane, 5;
    and.b32 %l, %lane, 7;
    shl.b32 %tile, %tile, 7;
    mov.u32 %row, tile;
    add.u32 %tile, %tile, %row;
    mad.lo.u32 %row, %l, 16, %tile;
    stmatrix.sync.aligned.m8n8.x1{".trans" if transposed else ""}.shared.b16 [%row], {{%a}};
    bar.sync 0;
    and.b32 %l, %lane, 31;
    mad.lo.u32 %row, %l, 4, %tile;
    ld.shared.b32 %d, [%row];
    movmatrix.sync.aligned.m8n8.trans.b16 %e, %a;
    """
    inputs = {"%a": matrix.view(np.uint32).reshape(LANES)}
    stored, turned = lanes.run(body, inputs, {"%d": np.uint32, "%e": np.uint32}, mixed=False)
    across = np.ascontiguousarray(matrix.transpose(0, 2, 1)).view(np.uint32).reshape(LANES)
    np.testing.assert_array_equal(stored, across if transposed else inputs["%a"])
    np.testing.assert_array_equal(turned, across)
