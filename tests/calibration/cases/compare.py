"""Minima, comparisons, selections and sign operations on floats: NaN, signed zeros, subnormals."""

from __future__ import annotations

from collections.abc import Iterator

from tests.calibration.case import Case
from tests.calibration.inputs import doubled, edges, grid, near
from tests.calibration.lanewise import Step, lanewise

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_PROPERTIES = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


def cases() -> Iterator[Case]:
    for kind in ("f32", "f64", "f16", "bf16"):
        values = dict(zip("ab", grid(kind, 2, 256, f"compare-{kind}"), strict=True))
        yield lanewise(f"{kind}-extrema", values, _extrema(kind))
        yield lanewise(f"{kind}-comparisons", values, _comparisons(kind))
        if kind in ("f16", "bf16"):
            pairs = {name: doubled(one, f"{kind}{name}") for name, one in values.items()}
            yield lanewise(f"{kind}x2-extrema", pairs, _extrema(f"{kind}x2"))
        else:
            yield lanewise(f"{kind}-signs", values, _signs(kind))
            properties = [Step(f"testp.{p}.{kind}", f"testp.{p}.{kind} %p, %a;", "pred") for p in _PROPERTIES]
            yield lanewise(f"{kind}-properties", {"a": values["a"][:: len(edges(kind))]}, properties)
    yield _selections()


def _extrema(kind: str) -> list[Step]:
    flushing = ("", ".ftz") if kind in ("f32", "f16", "f16x2") else ("",)
    rest = ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs") if kind != "f64" else ("",)
    forms = [f"{name}{ftz}{more}.{kind}" for name in ("min", "max") for ftz in flushing for more in rest]
    return [Step(form, f"{form} %d, %a, %b;", kind) for form in forms]


def _comparisons(kind: str) -> list[Step]:
    flushing = ("", ".ftz") if kind in ("f32", "f16") else ("",)
    forms = [f"setp.{comparison}{ftz}.{kind}" for comparison in _COMPARISONS for ftz in flushing]
    return [Step(form, f"{form} %p, %a, %b;", "pred") for form in forms]


def _signs(kind: str) -> list[Step]:
    flushing = ("", ".ftz") if kind == "f32" else ("",)
    steps = [
        Step(f"{name}{ftz}.{kind}", f"{name}{ftz}.{kind} %d, %a;", kind) for name in ("abs", "neg") for ftz in flushing
    ]
    return [*steps, Step(f"copysign.{kind}", f"copysign.{kind} %d, %a, %b;", kind)]


def _selections() -> Case:
    a, b = grid("f32", 2, 256, "selections")
    values = {"a": a, "b": b, "c": near("f32", len(a), "selections")}
    forms = [f"slct{ftz}.{kind}.{by}" for kind in ("u32", "f32") for by, flushing in
             (("s32", ("",)), ("f32", ("", ".ftz"))) for ftz in flushing]  # fmt: skip
    steps = [Step(form, f"{form} %d, %c, %b, %a;", "u32") for form in forms]
    for comparison in ("lt", "geu"):
        for target in ("u32", "f32"):
            form = f"set.{comparison}.{target}.f32"
            steps.append(Step(form, f"{form} %d, %a, %b;", "u32"))
    return lanewise("selections", values, steps)
