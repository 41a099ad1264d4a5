"""Random cases of convolutions and matrix products, grouped ones too, as case lines.

A ``Form`` is what shapes a kernel (data type, direction, filter, strides, layout, epilogue); many shapes of one form
share kernels, so that a sweep of thousands of cases compiles hundreds. ``forms`` goes through every pair of data type
and direction in turn and draws the rest, ``narrow_forms`` does so for one tap and few channels; ``draw`` draws a shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

Extents = tuple[int, ...]

#: (direction, data types of operands and output)
_CONVOLUTIONS = (
    *(("fprop", words) for words in ("dtype=bf16", "dtype=fp16", "dtype=fp32", "dtype=fp64", "dtype=int8")),
    *(("fprop", words) for words in ("dtype=e4m3 out=bf16", "dtype=e5m2 out=fp16", "dtype=bf16 out=fp32")),
    ("fprop", "dtype=e4m3 out=bf16 compute=fast"),
    *(("dgrad", words) for words in ("dtype=bf16", "dtype=fp16", "dtype=fp32", "dtype=fp64")),
    *(("wgrad", words) for words in ("dtype=bf16", "dtype=fp16", "dtype=fp32", "dtype=fp64", "dtype=bf16 out=fp32")),
)
_PRODUCTS = (
    *("dtype=bf16", "dtype=fp16", "dtype=fp32", "dtype=fp64", "dtype=int8", "dtype=bf16 out=fp32"),
    *("dtype=e4m3 out=bf16", "dtype=e5m2 out=fp16", "dtype=e5m2 out=fp16 compute=fast"),
)
#: (routing, data types) of grouped products; wgrad: the gradient of the weights.
_ROUTED = (
    *(("none", words) for words in ("dtype=bf16", "dtype=e4m3 out=bf16", "dtype=fp32", "dtype=int8")),
    *(("wgrad", words) for words in ("dtype=bf16", "dtype=fp16 out=fp32", "dtype=fp64")),
    *(("gather", words) for words in ("dtype=fp16", "dtype=bf16")),
    *(("scatter", words) for words in ("dtype=bf16", "dtype=fp64")),
)
_EPILOGUES = {
    "fprop": (
        "",
        "",
        "epilogue=bias+relu",
        "epilogue=scale+bias",
        "epilogue=bias+residual+relu",
        "epilogue=bias+swish",
    ),
    "dgrad": ("", "", "epilogue=relu_bwd", "epilogue=residual"),
    "wgrad": ("",),
}
_EXITS = {
    "fprop": ("exits=genstats", "exits=sum+amax", "exits=rowmax", "exits=genstats+rowsum+amax"),
    "dgrad": ("exits=sum", "exits=genstats+amax", "exits=rowsum"),
    "matmul": ("exits=sum", "exits=rowmax", "exits=rowsum+amax", "exits=sum+rowsum"),
}
#: At most so many channels, or filters, are few.
_FEW_CHANNELS = 24
#: One form in so many has exits.
_FORMS_BETWEEN_EXITS = 4
#: Forms of 16-bit types.
_PROLOGUES = {
    "fprop": ("", "", "prologue=scale+bias", "raw=int8 prologue=scale before=filter"),
    "dgrad": ("", "", "prologue=scale+bias"),
    "wgrad": ("", "", "prologue=bias+relu"),
    "product": ("", "", "prologue=scale+bias", "raw=int8 prologue=scale before=b"),
}
_BLENDS = ("", "", "", "", "alpha=0.5", "alpha=2 beta=1")
_TAPS = ((1, 2, 3, 4, 5, 7, 9), (1, 2, 3, 3, 4, 5, 7), (1, 2, 3))


@dataclass(frozen=True)
class Size:
    """Bounds of a drawn case: extents of channels and pixels, products that are summed, matrix extents."""

    channels: int
    outputs: Extents  #: extents of each axis, for 1, 2 and 3 spatial dimensions
    products: int
    matrix: int

    def reduced(self) -> Size:
        return replace(self, channels=-(-self.channels // 2), outputs=tuple(-(-2 * most // 3) for most in self.outputs))


#: For the emulated device, and for a GPU with the reference on the CPU.
TINY = Size(channels=16, outputs=(16, 5, 2), products=50_000, matrix=33)
SMALL = Size(channels=200, outputs=(300, 24, 8), products=40_000_000, matrix=300)


@dataclass(frozen=True)
class ConvolutionForm:
    """``groups``: dense, grouped, depthwise or narrow, which has few channels or filters, and no paddings.

    words: the rest of the line, as it stands.
    """

    direction: str
    rs: Extents
    stride: Extents
    dil: Extents
    groups: str
    words: str


@dataclass(frozen=True)
class ProductForm:
    """``batch``: none, one, two, broadcast or shared. ``words``: the rest of the line, as it stands."""

    batch: str
    words: str


@dataclass(frozen=True)
class RoutedForm:
    """``routing``: none, gather, scatter or wgrad. ``words``: the rest of the line, as it stands."""

    routing: str
    words: str


Form = ConvolutionForm | ProductForm | RoutedForm


def forms(count: int, seed: int) -> list[Form]:
    """``count`` forms: every pair of direction and data type in turn, one matrix product after two convolutions.

    Each fourth matrix product is a grouped one.
    """
    rng = np.random.default_rng(seed)
    made: list[Form] = []
    while len(made) < count:
        number = len(made)
        form: Form
        if number % 12 == 11:
            form = _routed_form(rng, *_ROUTED[number // 12 % len(_ROUTED)])
        elif number % 3 == 2:
            form = _product_form(rng, _PRODUCTS[number // 3 % len(_PRODUCTS)])
        else:
            convolutions = number - number // 3
            form = _convolution_form(rng, *_CONVOLUTIONS[convolutions % len(_CONVOLUTIONS)])
        made.append(_with_exits(form, number, seed))
    return made


def narrow_forms(count: int, seed: int) -> list[Form]:
    """``count`` forms of convolutions of one tap that are narrow, in every direction and data type in turn."""
    rng = np.random.default_rng(seed)
    made: list[Form] = []
    for number in range(count):
        form = _convolution_form(rng, *_CONVOLUTIONS[number % len(_CONVOLUTIONS)])
        ones = (1,) * len(form.rs)
        made.append(_with_exits(replace(form, rs=ones, stride=ones, dil=ones, groups="narrow"), number, seed))
    return made


def draw(form: Form, rng: np.random.Generator, size: Size) -> str:
    """The line of a case of this form."""
    if isinstance(form, ConvolutionForm):
        return _convolution(form, rng, size)
    return _product(form, rng, size) if isinstance(form, ProductForm) else _routed(form, rng, size)


def _convolution_form(rng: np.random.Generator, direction: str, types: str) -> ConvolutionForm:
    spatial = int(rng.choice([1, 2, 2, 2, 3]))
    groups = _pick(rng, ("dense", "dense", "dense", "grouped", "depthwise"))
    layout = _pick(rng, ("layout=nhwc", "layout=nhwc", "layout=nhwc", "layout=nchw"))
    mode = _pick(rng, ("", "", "", "mode=flipped"))
    align = _pick(rng, ("", "", "", "align=4"))
    epilogue = _pick(rng, _EPILOGUES[direction])
    blend = "" if epilogue or "int8" in types else _pick(rng, _BLENDS)
    prologue = _prologue(rng, direction, types)
    return ConvolutionForm(
        direction,
        rs=tuple(int(_pick(rng, _TAPS[spatial - 1])) for _ in range(spatial)),
        stride=tuple(int(value) for value in rng.choice([1, 1, 1, 2, 2, 3], spatial)),
        dil=tuple(int(value) for value in rng.choice([1, 1, 1, 1, 2, 7], spatial)),
        groups=groups,
        words=_line(f"dir={direction}", types, layout, mode, align, blend, prologue, epilogue),
    )


def _product_form(rng: np.random.Generator, types: str) -> ProductForm:
    layout = _pick(rng, ("layout=nn", "layout=nt", "layout=tn", "layout=tt"))
    align = _pick(rng, ("", "", "", "align=4"))
    epilogue = _pick(rng, ("", "", "epilogue=bias+relu", "epilogue=scale+residual", "epilogue=bias+gelu"))
    batch = _pick(rng, ("none", "one", "two", "broadcast", "shared"))
    return ProductForm(batch, _line(types, layout, align, _prologue(rng, "product", types), epilogue))


def _prologue(rng: np.random.Generator, direction: str, types: str) -> str:
    return _pick(rng, _PROLOGUES[direction]) if types.startswith(("dtype=bf16", "dtype=fp16")) else ""


def _with_exits(form: Form, number: int, seed: int) -> Form:
    """The form with reductions of its result, where they are summed in a type that reductions have."""
    kind = form.direction if isinstance(form, ConvolutionForm) else "matmul"
    if number % _FORMS_BETWEEN_EXITS or kind not in _EXITS or "int8" in form.words:
        return form
    return replace(form, words=_line(form.words, _pick(np.random.default_rng((seed, number)), _EXITS[kind])))


def _routed_form(rng: np.random.Generator, routing: str, types: str) -> RoutedForm:
    layout = _pick(rng, ("layout=nn", "layout=nt"))
    align = _pick(rng, ("", "", "", "align=8"))
    offset = _pick(rng, ("", "", "offset=int64"))
    epilogue = "" if routing == "wgrad" else _pick(rng, ("", "epilogue=bias+relu", "epilogue=residual"))
    return RoutedForm(routing, _line(types, layout, align, offset, epilogue))


def _convolution(form: ConvolutionForm, rng: np.random.Generator, size: Size) -> str:
    most, is_padded = size.outputs[len(form.rs) - 1], form.groups != "narrow"
    axes = [_axis(rng, *axis, most, is_padded) for axis in zip(form.rs, form.stride, form.dil, strict=True)]
    hw, pads = (tuple(values) for values in zip(*axes, strict=True))
    groups, c, k = _channels(form.groups, rng, size)
    n = int(rng.integers(1, 4))
    if n * prod(hw) * k * c // groups * prod(form.rs) > size.products and size.channels > 1:
        return _convolution(form, rng, size.reduced())
    return _line(
        f"conv n={n} c={c} hw={_joined(hw)} k={k} rs={_joined(form.rs)} pad={_joined(pads)}",
        f"stride={_joined(form.stride)} dil={_joined(form.dil)} groups={groups}",
        form.words,
    )


def _axis(
    rng: np.random.Generator, taps: int, stride: int, dilation: int, most_outputs: int, is_padded: bool
) -> tuple[int, str]:
    """(extent of the image, paddings): up to ``most_outputs`` outputs, some elements that no tap reaches."""
    reach = 1 + (taps - 1) * dilation
    before, after = (int(rng.integers(0, reach + 1)) if is_padded else 0 for _ in "ab")
    padded = (int(rng.integers(1, most_outputs + 1)) - 1) * stride + reach + int(rng.integers(stride))
    return max(1, padded - before - after), f"{before}:{after}"


def _channels(kind: str, rng: np.random.Generator, size: Size) -> tuple[int, int, int]:
    """(groups, channels, filters); half of the counts are multiples of 8."""
    if kind == "dense":
        return 1, _count(rng, size.channels), _count(rng, size.channels)
    if kind == "narrow":
        few, others = _count(rng, _FEW_CHANNELS), _count(rng, size.channels)
        return (1, few, others) if rng.integers(2) else (1, others, few)
    if kind == "depthwise":
        channels = _count(rng, size.channels)
        return channels, channels, channels * int(rng.choice([1, 1, 1, 2]))
    groups = int(rng.integers(2, 9))
    widest = max(1, size.channels // groups)
    return groups, groups * _count(rng, widest), groups * _count(rng, widest)


def _product(form: ProductForm, rng: np.random.Generator, size: Size) -> str:
    m, n, k = (_count(rng, size.matrix) for _ in "mnk")
    few = int(rng.integers(2, 4))
    batches = [few, few * int(rng.integers(2, 4))]
    rng.shuffle(batches)
    batch = {
        "none": "",
        "one": f"b={rng.integers(1, 5)}",
        "two": f"b={rng.integers(1, 4)}x{rng.integers(1, 4)}",
        "broadcast": f"b={rng.integers(2, 5)} broadcast={_pick(rng, ('a', 'b'))}",
        "shared": f"b={batches[0]} bb={batches[1]}",
    }[form.batch]
    return _line(f"matmul m={m} n={n} k={k}", batch, form.words)


def _routed(form: RoutedForm, rng: np.random.Generator, size: Size) -> str:
    n, k = (_count(rng, size.matrix) for _ in "nk")
    top_k = int(rng.integers(1, 4)) if form.routing == "scatter" else 1
    rows = top_k * int(rng.integers(1, 3 * size.matrix))
    experts, batches = int(rng.integers(1, 9)), int(rng.integers(1, 3))
    ends = 1 if experts == 1 else int(rng.integers(2))
    extents = f"experts={experts} batches={batches} ends={ends} rows={rows} n={n} k={k}"
    routing = {
        "none": "",
        "wgrad": "dir=wgrad",
        "gather": f"mode=gather tokens={rng.integers(1, rows + 1)}",
        "scatter": f"mode=scatter top_k={top_k}",
    }[form.routing]
    return _line("moe", extents, routing, form.words)


def _count(rng: np.random.Generator, most: int) -> int:
    count = int(rng.integers(1, most + 1))
    return count if rng.integers(2) else min(most, -(-count // 8) * 8)


def _pick(rng: np.random.Generator, values: tuple[object, ...]) -> str:
    return str(values[int(rng.integers(len(values)))])


def _line(*words: str) -> str:
    return " ".join(word for word in words if word)


def _joined(values: tuple[object, ...]) -> str:
    return "x".join(map(str, values))
