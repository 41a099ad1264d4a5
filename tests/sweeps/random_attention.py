"""Random attention and gradients of it: lines of text that cross sizes, heads, masks, dropout, layouts, statistics,
sinks."""

from __future__ import annotations

import numpy as np

_SIZES = (8, 16, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256)


def draw(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case with lengths and heads up to ``most``; its kernels follow from what ``kernel`` draws, not from
    ``numbers``."""
    return _draw(kernel, numbers, most, most, places=0.3)


def draw_mapped(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case of which tensor maps can describe k and v, perhaps packed or in pages, drawn as ``draw`` does."""
    return _draw(kernel, numbers, most, most, places=0.5, page=8 << kernel.integers(0, 5))


def draw_fp8(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case in fp8, with numbers that scale it."""
    return _draw(kernel, numbers, most, most, places=0.0, is_fp8=True)


def draw_decode(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case of up to 8 queries and ``most`` keys, perhaps packed or in pages, drawn as ``draw`` does."""
    return _draw(kernel, numbers, 8, most, places=0.5)


def draw_backward(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case of gradients, perhaps of changed scores, dropped weights, packed sequences, drawn as ``draw`` does."""
    words = []
    if happens(kernel, 0.3):
        words.append(f"bias={kernel.choice(['bh', '1h', 'b1', '11'])}")
    if happens(kernel, 0.2):
        words.append("cap=2")
    if happens(kernel, 0.2):
        words.append("alibi=yes")
    if happens(kernel, 0.3):
        words.append(f"dropout=0.25 masked={kernel.choice(['no', 'yes'])}")
    if happens(kernel, 0.25):
        words.append("ragged=yes")
    return " ".join([_draw_backward(kernel, numbers, most, *heads_of(numbers)), *words])


def draw_backward_shared_alike(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case of gradients of plain scores with as many heads of k as of v."""
    heads = int(numbers.choice([1, 1, 2]))
    return _draw_backward(kernel, numbers, most, heads, heads, heads * int(numbers.choice([1, 2])))


def draw_fp8_backward(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case of gradients in fp8, perhaps of dropped weights, drawn as ``draw`` does, of half the lengths."""
    words = [f"d_o={kernel.choice(['e4m3', 'e5m2'])}"]
    if happens(kernel, 0.3):
        words.append(f"dropout=0.25 masked={kernel.choice(['no', 'yes'])}")
    return " ".join([_draw_backward(kernel, numbers, most // 2, *heads_of(numbers), is_fp8=True), *words])


def _draw(
    kernel: np.random.Generator,
    numbers: np.random.Generator,
    most_queries: int,
    most: int,
    places: float,
    page: int = 0,
    is_fp8: bool = False,
) -> str:
    """places: the chance that sequences are packed, or in pages.  page: rows of a page; 0: any number."""
    sizes, types = _sizes_and_types(is_fp8, most)
    k_heads, v_heads, heads = heads_of(numbers)
    words = [f"b={numbers.integers(1, 3)}", f"h={heads}", f"hk={k_heads}", f"hv={v_heads}"]
    words += [f"q={_length(numbers, most_queries)}", f"kv={_length(numbers, most)}", f"d={kernel.choice(sizes)}"]
    if happens(kernel, 0.3):
        words.append(f"dv={kernel.choice(sizes)}")
    if happens(kernel, 0.5):
        words.append(f"causal={numbers.choice(['top_left', 'bottom_right'])}")
    if happens(kernel, 0.3):
        words.append(f"left={numbers.integers(0, most)}")
    if happens(kernel, 0.2):
        words.append(f"right={numbers.integers(0, most)}")
    if happens(kernel, places / 2):
        words += ["lengths=yes", f"page={page or 1 << numbers.integers(0, 8)}"]
    elif happens(kernel, places / 2):
        words += ["ragged=yes", f"lengths={kernel.choice(['no', 'yes'])}"]
    elif happens(kernel, 0.3):
        words.append(f"lengths={kernel.choice(['yes', 'both'])}")
    if happens(kernel, 0.3):
        words.append(f"scores={kernel.choice(['bias', 'scalar', 'tanh', 'add', 'bias+tanh'])}")
    if not is_fp8 and happens(kernel, 0.2):
        words.append("dropout=0.25")
    if happens(kernel, 0.7):
        words.append(f"stats={kernel.choice(['yes', 'lse', 'log2'])}")
    words += [f"layout={numbers.choice(['bhsd', 'bshd', 'sbhd'])}", f"dtype={kernel.choice(types)}"]
    if happens(kernel, 0.2):
        words.append(f"out={kernel.choice(['fp32', 'fp16', 'bf16'])}")
    if happens(kernel, 0.2):
        words.append("sink=yes")
    if happens(kernel, 0.2):
        words.append("blocks=yes")
    return "sdpa " + " ".join(words)


def _draw_backward(
    kernel: np.random.Generator,
    numbers: np.random.Generator,
    most: int,
    k_heads: int,
    v_heads: int,
    heads: int,
    *,
    is_fp8: bool = False,
) -> str:
    sizes, types = _sizes_and_types(is_fp8, most)
    words = [f"b={numbers.integers(1, 3)}", f"h={heads}", f"hk={k_heads}", f"hv={v_heads}"]
    words += [f"q={_length(numbers, most)}", f"kv={_length(numbers, most)}", f"d={kernel.choice(sizes)}"]
    if happens(kernel, 0.3):
        words.append(f"dv={kernel.choice(sizes)}")
    for side in ("left", "right"):
        if happens(numbers, 0.5):
            words.append(f"{side}={0 if happens(numbers, 0.4) else numbers.integers(0, most)}")
    words += [
        f"place={numbers.choice(['top_left', 'bottom_right'])}",
        f"lengths={numbers.choice(['no', 'kv', 'both'])}",
    ]
    words += [f"index={kernel.choice(['int32', 'int64'])}"]
    words += [f"scale={numbers.choice(['constant', 'host', 'device', 'none'])}"]
    words += [f"layout={numbers.choice(['bhsd', 'bshd', 'sbhd'])}", f"dtype={kernel.choice(types)}"]
    if happens(kernel, 0.2):
        words.append(f"out={kernel.choice(['fp32', 'fp16', 'bf16'])}")
    words.append(f"deterministic={kernel.choice(['no', 'yes'])}")
    return "sdpa_bwd " + " ".join(words)


def _sizes_and_types(is_fp8: bool, most: int) -> tuple[list[int], list[str]]:
    """The sizes and types of heads."""
    sizes = [size for size in _SIZES if size <= most and (not is_fp8 or size % 16 == 0)]
    return sizes, ["e4m3", "e5m2"] if is_fp8 else ["fp16", "bf16"]


def heads_of(numbers: np.random.Generator) -> tuple[int, int, int]:
    """(of k, of v, of q, which both divide)."""
    k_heads, v_heads = (int(numbers.choice([1, 1, 2])) for _ in range(2))
    return k_heads, v_heads, k_heads * v_heads * int(numbers.choice([1, 2]))


def happens(rng: np.random.Generator, chance: float) -> bool:
    return bool(rng.random() < chance)


def _length(rng: np.random.Generator, most: int) -> int:
    return 1 if happens(rng, 0.1) else int(rng.integers(1, most + 1))
