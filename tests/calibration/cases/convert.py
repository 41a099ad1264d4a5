"""cvt: every 8- and 16-bit input, and edge values of the wider types. PTX ISA manual, "cvt", "cvt.pack"."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.calibration.case import Array, Case
from tests.calibration.inputs import all_bits, doubled, edges, near, random_bits
from tests.calibration.lanewise import Step, lanewise

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_DTYPES = {kind: np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}") for kind in _INTEGERS}
_TO_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_FLOATS = ("f16", "f32", "f64")

#: The kind of output that holds each cvt type. NaN becomes one pattern in the narrow ones, which are compared as bits.
_KINDS = {
    "u8": "u8", "s8": "u8", "u16": "u16", "s16": "u16", "u32": "u32", "s32": "u32", "u64": "u64", "s64": "u64",
    "f16": "u16", "bf16": "u16", "f16x2": "u32", "bf16x2": "u32", "tf32": "u32", "e4m3x2": "u16", "e5m2x2": "u16",
}  # fmt: skip


def cases() -> Iterator[Case]:
    for source in ("f16", "bf16"):
        yield _to_integers(source, all_bits(2), "")
        yield _from_half(source)
    for source in ("u8", "s8"):
        yield _from_integer(source, all_bits(1))
    for source in ("u16", "s16"):
        yield _from_integer(source, all_bits(2))
    for source in ("u32", "s32"):
        yield _from_integer(source, _integer_edges(4))
    for source in ("u64", "s64"):
        yield _from_integer(source, _integer_edges(8))
    for source in ("e4m3", "e5m2"):
        yield _from_bytes(source)
        yield _pairs_to_bytes(source)
    yield _to_integers("f32", _f32_inputs(), "")
    yield _to_integers("f32", _f32_inputs(), ".ftz")
    yield _to_integers("f64", _f64_inputs(), "")
    yield _from_f32()
    yield _from_f64()
    yield _f32_to_pairs()
    yield _packed_integers()


def _cvt(modifiers: str, target: str, source: str, operands: str = "%a") -> Step:
    text = f"cvt{modifiers}.{target}.{source}"
    kind = target if source == "f64" and target in ("f16", "bf16") else _KINDS.get(target, target)
    return Step(text, f"{text} %d, {operands};", kind)


def _to_integers(source: str, values: Array, ftz: str) -> Case:
    targets = _INTEGERS[2:] if source == "bf16" else _INTEGERS
    steps = [_cvt(f".{rounding}{ftz}", target, source) for target in targets for rounding in _TO_INTEGRAL]
    return lanewise(f"{source}-to-integers{ftz}", {"a": values}, steps)


def _from_half(source: str) -> Case:
    """f16 and bf16 to floats, and to whole numbers of their own type."""
    steps = [_cvt("", "f32", source), _cvt("", "f64", source)]
    steps += [_cvt(".sat", "f32", source)] if source == "f16" else []
    steps += [_cvt(f".{rounding}", source, source) for rounding in _TO_INTEGRAL]
    other = {"f16": "bf16", "bf16": "f16"}[source]
    steps += [_cvt(f".{rounding}", other, source) for rounding in _ROUNDINGS]
    return lanewise(f"{source}-to-floats", {"a": all_bits(2)}, steps)


def _from_integer(source: str, values: Array) -> Case:
    steps = [_cvt(".sat", target, source) for target in _INTEGERS if not _holds(target, source)]
    steps += [_cvt("", target, source) for target in _INTEGERS if target != source]
    steps += [_cvt(f".{rounding}", target, source) for target in _FLOATS for rounding in _ROUNDINGS]
    if source not in ("u8", "s8"):
        steps += [_cvt(f".{rounding}", "bf16", source) for rounding in _ROUNDINGS]
    return lanewise(f"{source}-to-all", {"a": values}, steps)


def _holds(target: str, source: str) -> bool:
    """Whether every number of ``source`` is one of ``target``, so that saturation has nothing to do."""
    low, high = (np.iinfo(_DTYPES[kind]) for kind in (source, target))
    return high.min <= low.min and low.max <= high.max


def _from_bytes(source: str) -> Case:
    steps = [_cvt(f".rn{relu}", "f16x2", f"{source}x2") for relu in ("", ".relu")]
    return lanewise(f"{source}-to-f16", {"a": all_bits(2)}, steps)


def _pairs_to_bytes(target: str) -> Case:
    steps = [_cvt(f".rn.satfinite{relu}", f"{target}x2", "f16x2") for relu in ("", ".relu")]
    return lanewise(f"f16-to-{target}", {"a": doubled(all_bits(2), target)}, steps)


def _from_f32() -> Case:
    steps = [_cvt(f".{rounding}{sat}", "f16", "f32") for rounding in _ROUNDINGS for sat in ("", ".ftz", ".sat")]
    steps += [_cvt(f".{rounding}{relu}", kind, "f32") for kind in ("f16", "bf16") for rounding in ("rn", "rz")
              for relu in (".relu", ".satfinite", ".relu.satfinite")]  # fmt: skip
    steps += [_cvt(f".{rounding}", "bf16", "f32") for rounding in _ROUNDINGS]
    steps += [_cvt(modifiers, "tf32", "f32") for modifiers in
              (".rna", ".rna.satfinite", ".rn", ".rz", ".rn.relu", ".rz.relu")]  # fmt: skip
    steps += [_cvt(f".{rounding}{ftz}{sat}", "f32", "f32") for rounding in _TO_INTEGRAL for ftz in ("", ".ftz")
              for sat in ("", ".sat")]  # fmt: skip
    steps += [_cvt(modifiers, "f64", "f32") for modifiers in ("", ".ftz", ".sat", ".ftz.sat")]
    steps += [_cvt(modifiers, "f32", "f32") for modifiers in (".sat", ".ftz.sat")]
    return lanewise("f32-to-floats", {"a": _f32_inputs()}, steps)


def _from_f64() -> Case:
    steps = [_cvt(f".{rounding}{ftz}{sat}", "f32", "f64") for rounding in _ROUNDINGS for ftz in ("", ".ftz")
             for sat in ("", ".sat")]  # fmt: skip
    steps += [_cvt(f".{rounding}{sat}", "f16", "f64") for rounding in _ROUNDINGS for sat in ("", ".sat")]
    steps += [_cvt(f".{rounding}", "bf16", "f64") for rounding in _ROUNDINGS]
    steps += [_cvt(f".{rounding}{sat}", "f64", "f64") for rounding in _TO_INTEGRAL for sat in ("", ".sat")]
    return lanewise("f64-to-floats", {"a": _f64_inputs()}, steps)


def _f32_to_pairs() -> Case:
    values = _f32_inputs()
    steps = [_cvt(f".{rounding}{rest}", target, "f32", "%a, %b") for target in ("f16x2", "bf16x2")
             for rounding in ("rn", "rz") for rest in ("", ".relu", ".satfinite", ".relu.satfinite")]  # fmt: skip
    steps += [_cvt(f".rn.satfinite{relu}", target, "f32", "%a, %b") for target in ("e4m3x2", "e5m2x2")
              for relu in ("", ".relu")]  # fmt: skip
    return lanewise("f32-to-pairs", {"a": values, "b": np.roll(values, 37)}, steps)


def _packed_integers() -> Case:
    values = _integer_edges(4)
    inputs = {"a": values, "b": np.roll(values, 19), "c": random_bits("cvt.pack", len(values), 4)}
    steps = [Step(f"cvt.pack.sat.{kind}.s32", f"cvt.pack.sat.{kind}.s32 %d, %a, %b;", "u32") for kind in ("u16", "s16")]
    steps += [Step(f"cvt.pack.sat.{kind}.s32.b32", f"cvt.pack.sat.{kind}.s32.b32 %d, %a, %b, %c;", "u32")
              for kind in ("u8", "s8", "u4", "s4", "u2", "s2")]  # fmt: skip
    return lanewise("pack", inputs, steps)


def _f32_inputs() -> Array:
    """Edge values, and around the range of every narrow type: values, midpoints, and the floats beside them."""
    exponents = [*range(127 - 20, 127 + 18), 127 + 31, 127 + 32, 127 + 63, 127 + 64, 1, 254, 103]
    tops = np.concatenate([(np.uint32(e << 23) + (np.arange(16, dtype=np.uint32) << np.uint32(19))) for e in exponents])
    midpoints = np.concatenate([tops + np.uint32(offset & 0xFFFFFFFF) for offset in (-1, 0, 1)])
    integers = np.concatenate([np.arange(0, 300) + shift for shift in (0.0, 0.25, 0.5)]).astype(np.float32).view("u4")
    fine = np.concatenate([near("f32", 256, "cvt") & np.uint32(mask) for mask in (0xFFFFF000, 0xFFFF8000, 0xFFFFE000)])
    positive = np.concatenate([midpoints, integers])
    parts = [edges("f32"), positive, positive | np.uint32(1 << 31), near("f32", 512, "cvt"), fine]
    return np.concatenate([*parts, random_bits("cvt.f32", 512, 4)]).astype(np.uint32)


def _f64_inputs() -> Array:
    """The f32 inputs with and without more bits below, edge values, and random numbers."""
    with np.errstate(invalid="ignore"):
        wide = _f32_inputs()[::3].view(np.float32).astype(np.float64).view(np.uint64)
    low = random_bits("cvt.f64", len(wide), 8) & np.uint64((1 << 29) - 1)
    below = np.float64(2.0**-126) * (1 - 2.0 ** -np.arange(20, 54))
    tiny = np.concatenate([below, -below]).view(np.uint64)
    return np.concatenate([edges("f64"), wide, wide ^ low, wide + np.uint64(1), near("f64", 256, "cvt"), tiny])


def _integer_edges(width: int) -> Array:
    """Powers of two and their neighbours, with all signs, then random bits of every length."""
    bits = 8 * width
    powers = np.uint64(1) << np.arange(bits, dtype=np.uint64)
    around = np.concatenate([powers + np.uint64(k) for k in range(3)] + [powers - np.uint64(k) for k in range(1, 4)])
    random = random_bits(f"integers{width}", 1024, 8) >> (np.arange(1024, dtype=np.uint64) % np.uint64(bits))
    values = np.concatenate([around, ~around, random, ~random])
    return values.astype(f"u{width}")
