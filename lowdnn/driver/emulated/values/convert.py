"""``cvt`` and ``cvt.pack`` (PTX ISA, "Data Movement and Conversion Instructions").

`converter` binds types and modifiers once and returns a function of lanes. Integers, f32 and f64 are arrays of that
dtype; f16 and bf16 are uint16, tf32 and the pairs of 16-bit floats uint32, e4m3x2 and e5m2x2 uint16.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowdnn.driver.emulated.values.floating import flush, saturated
from lowdnn.driver.emulated.values.formats import FORMATS, decode, encode
from lowdnn.driver.emulated.values.packed import Lanes, elements, joined, pair
from lowdnn.driver.emulated.values.rounding import NEAREST, add_to_odd, adjusted, integral, narrow, two_sum
from lowdnn.status import NotSupportedError

INTEGERS: dict[str, type[np.integer]] = {
    "u8": np.uint8,
    "s8": np.int8,
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
}
_SCALE = np.float64(2.0**32)
_SCALED_MIN_NORMAL = np.float32(2.0**-94)
_SCALAR_FLOATS = ("f16", "bf16", "tf32", "f32", "f64")
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_TO_INTEGRAL = ("rni", "rzi", "rmi", "rpi")

Converter = Callable[..., Lanes]


def converter(
    source: str,
    target: str,
    rounding: str | None = None,
    saturate: bool = False,
    ftz: bool = False,
    relu: bool = False,
    satfinite: bool = False,
) -> Converter:
    """The function of ``cvt{.rounding}{.ftz}{.sat}{.relu}{.satfinite}.target.source``.

    It takes one value; from f32 to a pair it takes two, the first going to the upper half. ``rounding`` is one of rn rz
    rm rp rna for floats and rni rzi rmi rpi to integral values. Raises NotSupportedError for types outside the tables.
    """
    if target in _PAIRS:
        return _to_pair(source, target, rounding or NEAREST, relu, satfinite)
    if source in INTEGERS and target in INTEGERS:
        return _integer_to_integer(INTEGERS[source], INTEGERS[target], saturate)
    if source in INTEGERS and target in _SCALAR_FLOATS:
        return _with_saturation(_integer_to_float(target, rounding or NEAREST), target, saturate)
    if source in _SCALAR_FLOATS and target in INTEGERS:
        return _float_to_integer(source, target, rounding or "rzi", ftz)
    if source in _SCALAR_FLOATS and target in _SCALAR_FLOATS:
        return _float_to_float(source, target, rounding, saturate, ftz, relu, satfinite)
    raise NotSupportedError.at("cvt.types", expected="types of the PTX ISA's cvt tables", got=f"{target} from {source}")


def pack_saturated(target: str, a: Lanes, b: Lanes, c: Lanes | None = None) -> Lanes:
    """``cvt.pack.sat.target.s32{.b32} d, a, b{, c}``: int32 a and b clamped to ``target``; b lies below a.

    16-bit targets fill d. Narrower ones (u8 s8 u4 s4 u2 s2) fill its low part, and c, shifted up, the rest.
    """
    bits = int(target[1:])
    signed = target[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    mask, shift = np.uint32((1 << bits) - 1), np.uint32(bits)
    upper, lower = (np.clip(value, np.int32(low), np.int32(high)).view(np.uint32) & mask for value in (a, b))
    packed = (upper << shift) | lower
    return packed if c is None else packed | (c << np.uint32(2 * bits))


def _integer_to_integer(source: type[np.integer], target: type[np.integer], saturate: bool) -> Converter:
    if not saturate:
        return lambda value: value.astype(target)
    low = source(max(np.iinfo(source).min, np.iinfo(target).min))
    high = source(min(np.iinfo(source).max, np.iinfo(target).max))
    return lambda value: np.clip(value, low, high).astype(target)


def _integer_to_float(target: str, rounding: str) -> Converter:
    if target == "f32":
        return lambda value: value.astype(np.float32) if rounding == NEAREST else narrow(_exact_or_odd(value), rounding)
    if target == "f64":
        return lambda value: value.astype(np.float64) if rounding == NEAREST else _directed_f64(value, rounding)
    return lambda value: encode(_exact_or_odd(value), target, rounding)


def _float_to_integer(source: str, target: str, rounding: str, ftz: bool) -> Converter:
    """Out-of-range values clamp. NaN is 0, but 1 << (bits - 1) if the source is f64 or the target has 64 bits."""
    kind = INTEGERS[target]
    load = _loader(source, ftz)
    limits = np.iinfo(kind)
    exponent = limits.bits - (1 if limits.min < 0 else 0)
    nan = kind(0)
    if source == "f64" or limits.bits == 64:
        nan = kind(limits.min if limits.min < 0 else 1 << (limits.bits - 1))

    def convert(value: Lanes) -> Lanes:
        whole = integral(load(value), rounding)
        lowest, beyond = whole.dtype.type(limits.min), whole.dtype.type(2.0**exponent)
        inside = (whole >= lowest) & (whole < beyond)
        if np.count_nonzero(inside) == inside.size:
            return whole.astype(kind)
        result = np.where(inside, whole, whole.dtype.type(0)).astype(kind)
        result = np.where(whole >= beyond, kind(limits.max), np.where(whole < lowest, kind(limits.min), result))
        return np.where(np.isnan(whole), nan, result)

    return convert


def _float_to_float(
    source: str, target: str, rounding: str | None, saturate: bool, ftz: bool, relu: bool, satfinite: bool
) -> Converter:
    # On an H200 .ftz of f16 from f32 keeps subnormal sources: rounded away from zero they give f16's smallest.
    load = _loader(source, ftz and target != "f16")
    to_integral = rounding if rounding in _TO_INTEGRAL else None
    store = _storer(target, NEAREST if rounding is None or to_integral else rounding, ftz, satfinite)

    def convert(value: Lanes) -> Lanes:
        number = load(value)
        if to_integral:
            number = integral(number, to_integral)
        if relu:
            number = _clamped_below(number)
        return store(saturated(number) if saturate else number)

    return convert


def _to_pair(source: str, target: str, rounding: str, relu: bool, satfinite: bool) -> Converter:
    name = _PAIRS[target]
    if source in _PAIRS:
        return _pair_to_pair(_PAIRS[source], name, rounding, relu, satfinite)
    if source != "f32":
        raise NotSupportedError.at("cvt.types", expected="f32 or a pair as the source", got=f"{target} from {source}")

    def convert(upper: Lanes, lower: Lanes) -> Lanes:
        if relu:
            upper, lower = _clamped_below(upper), _clamped_below(lower)
        high, low = encode(upper, name, rounding, satfinite), encode(lower, name, rounding, satfinite)
        return pair(low, high) if low.dtype == np.uint16 else _byte_pair(low, high)

    return convert


def _pair_to_pair(source: str, target: str, rounding: str, relu: bool, satfinite: bool) -> Converter:
    part, packed = FORMATS[source].nan.dtype.type, np.uint32 if FORMATS[target].nan.dtype == np.uint16 else np.uint16

    def convert(value: Lanes) -> Lanes:
        number = decode(elements(value, part), source)
        return joined(encode(_clamped_below(number) if relu else number, target, rounding, satfinite), packed)

    return convert


def _loader(source: str, ftz: bool) -> Converter:
    """Bits or float of type ``source`` to float32 or float64, exactly; ``.ftz`` flushes f32 sources."""
    if source == "f32" and ftz:
        return flush
    if source in ("f16", "bf16"):
        return lambda value: decode(value, source)
    return lambda value: value


def _storer(target: str, rounding: str, ftz: bool, satfinite: bool) -> Converter:
    if target == "f64":
        return lambda value: value.astype(np.float64)
    if target != "f32":
        return lambda value: encode(value, target, rounding, satfinite)
    if ftz:
        return lambda value: _flushed_f32(value, rounding)
    return lambda value: _to_f32(value, rounding)


def _flushed_f32(value: Lanes, rounding: str) -> Lanes:
    """To float32 with ``.ftz`` as in `floating.arithmetic`: rounding does not know of the smallest exponent."""
    result = flush(_to_f32(value, rounding))
    if value.dtype == np.float32:
        return result
    below = np.abs(_to_f32(value * _SCALE, rounding)) < _SCALED_MIN_NORMAL
    return np.where(below, np.copysign(np.float32(0), result), result)


def _to_f32(value: Lanes, rounding: str) -> Lanes:
    return value if value.dtype == np.float32 else narrow(value, rounding)


def _with_saturation(convert: Converter, target: str, saturate: bool) -> Converter:
    """Integers saturated to [0, 1] before the conversion: both bounds are exact in every format."""
    if not saturate:
        return convert
    return lambda value: convert(np.clip(value, value.dtype.type(0), value.dtype.type(1)))


def _exact_or_odd(value: Lanes) -> Lanes:
    """Integers as float64, exact below 54 bits and rounded to odd above."""
    return add_to_odd(*_halves(value)) if value.dtype.itemsize == 8 else value.astype(np.float64)


def _directed_f64(value: Lanes, rounding: str) -> Lanes:
    return adjusted(*two_sum(*_halves(value)), rounding) if value.dtype.itemsize == 8 else value.astype(np.float64)


def _halves(value: Lanes) -> tuple[Lanes, Lanes]:
    """A 64-bit integer as the exact float64 values of its upper part, times 2**32, and its lower part."""
    low = value & value.dtype.type(0xFFFFFFFF)
    return (value - low).astype(np.float64), low.astype(np.float64)


def _clamped_below(value: Lanes) -> Lanes:
    """``.relu``: negative values and -0 become +0; NaN stays."""
    return np.where(value <= 0, value.dtype.type(0), value)


def _byte_pair(low: Lanes, high: Lanes) -> Lanes:
    return low.astype(np.uint16) | (high.astype(np.uint16) << np.uint16(8))
