"""Rounded arithmetic in all modes. PTX ISA manual, "Floating Point Instructions", "Half Precision ..."."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.calibration.case import Case
from tests.calibration.inputs import doubled, grid, near
from tests.calibration.lanewise import Step, lanewise

_ROUNDINGS = ("rn", "rz", "rm", "rp")
_OPERANDS = ("%a", "%a, %b", "%a, %b, %c")


def cases() -> Iterator[Case]:
    binary = [(operation, rest) for operation in ("add", "sub", "mul") for rest in ("", ".ftz", ".sat", ".ftz.sat")]
    yield _rounded("f32-binary", "f32", 2, 512, [*binary, ("div", ""), ("div", ".ftz")])
    yield _rounded("f32-fma", "f32", 3, 768, [("fma", rest) for rest in ("", ".ftz", ".sat", ".ftz.sat")])
    yield _rounded("f32-unary", "f32", 1, 1024, [(name, ftz) for name in ("rcp", "sqrt") for ftz in ("", ".ftz")])
    yield _rounded("f64-binary", "f64", 2, 512, [(operation, "") for operation in ("add", "sub", "mul", "div")])
    yield _rounded("f64-fma", "f64", 3, 768, [("fma", "")])
    yield _rounded("f64-unary", "f64", 1, 1024, [("rcp", ""), ("sqrt", "")])
    yield _tiny_f32()
    yield _tiny_f16()
    for kind in ("f16", "bf16"):
        yield from _halves(kind)


def _rounded(name: str, kind: str, operands: int, random_count: int, forms: list[tuple[str, str]]) -> Case:
    """Operations without a rounding (plain ``add``) may be contracted, so every step names its own."""
    values = grid(kind, operands, random_count, name)
    steps = [_step(f"{operation}.{rounding}{rest}.{kind}", operands, kind) for operation, rest in forms
             for rounding in _ROUNDINGS]  # fmt: skip
    return lanewise(name, dict(zip("abc", values, strict=False)), steps)


def _tiny_f32() -> Case:
    """Products and quotients within one rounding of the smallest normal number, from both sides: what .ftz sees."""
    factor = near("f32", 512, "tiny") & np.uint32(0x807FFFFF) | np.uint32(0x3F000000)
    with np.errstate(over="ignore"):
        other = (np.float64(2.0**-126) / factor.view(np.float32)).astype(np.float32).view(np.uint32)
    other = other + (np.arange(512, dtype=np.uint32) % np.uint32(3)) - np.uint32(1)
    values = {"a": other, "b": factor}
    divisor = near("f32", 512, "divisor") & np.uint32(0x807FFFFF) | np.uint32(0x3F800000)
    dividend = (divisor.view(np.float32) * np.float64(2.0**-126)).astype(np.float32).view(np.uint32)
    values |= {"x": dividend - np.arange(512, dtype=np.uint32) % np.uint32(2), "y": divisor}
    forms = [(name, operands, rounding, ftz) for name, operands in (("mul", "%a, %b"), ("div", "%x, %y"))
             for rounding in _ROUNDINGS for ftz in ("", ".ftz")]  # fmt: skip
    texts = [(f"{name}.{rounding}{ftz}.f32", operands) for name, operands, rounding, ftz in forms]
    steps = [Step(form, f"{form} %d, {operands};", "f32") for form, operands in texts]
    steps += [Step(f"fma.{rounding}.ftz.f32", f"fma.{rounding}.ftz.f32 %d, %a, %b, 0f80000000;", "f32")
              for rounding in _ROUNDINGS]  # fmt: skip
    return lanewise("f32-tiny", values, steps)


def _tiny_f16() -> Case:
    factor = near("f16", 512, "tiny") & np.uint16(0x83FF) | np.uint16(0x3800)
    other = (np.float64(2.0**-14) / factor.view(np.float16)).astype(np.float16).view(np.uint16)
    values = {
        "a": other + (np.arange(512) % 3 - 1).astype(np.uint16),
        "b": factor,
        "c": np.full(512, 0x8000, np.uint16),
    }
    steps = [_step(f"mul.rn{ftz}.f16", 2, "f16") for ftz in ("", ".ftz")]
    return lanewise("f16-tiny", values, [*steps, *(_step(f"fma.rn{ftz}.f16", 3, "f16") for ftz in ("", ".ftz"))])


def _halves(kind: str) -> Iterator[Case]:
    rests = ("", ".ftz", ".sat", ".ftz.sat") if kind == "f16" else ("",)
    two, three = grid(kind, 2, 1024, f"{kind}-binary"), grid(kind, 3, 1024, f"{kind}-fma")
    binary = [f"{operation}.rn{rest}" for operation in ("add", "sub", "mul") for rest in rests]
    fused = [f"fma.rn{rest}" for rest in rests] + ["fma.rn.relu"] + (["fma.rn.ftz.relu"] if kind == "f16" else [])
    signs = [f"{operation}{ftz}" for operation in ("abs", "neg") for ftz in ("", ".ftz")[: len(rests)]]
    for pair in ("", "x2"):
        spread = (lambda values: [doubled(v, f"{kind}{place}") for place, v in enumerate(values)]) if pair else list
        for name, values, forms in (("binary", two, binary), ("fma", three, fused), ("signs", two[:1], signs)):
            steps = [_step(f"{form}.{kind}{pair}", len(values), f"{kind}{pair}") for form in forms]
            yield lanewise(f"{kind}{pair}-{name}", dict(zip("abc", spread(values), strict=False)), steps)


def _step(instruction: str, operands: int, kind: str) -> Step:
    return Step(instruction, f"{instruction} %d, {_OPERANDS[operands - 1]};", kind)
