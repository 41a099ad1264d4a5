"""Random attention and gradients of it: lines of text that cross sizes, heads, masks, dropout, layouts, statistics."""

from __future__ import annotations

import numpy as np

_SIZES = (8, 16, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256)


def draw(rng: np.random.Generator, most: int) -> str:
    """A case with lengths up to ``most``."""
    k_heads, v_heads = (int(rng.choice([1, 1, 2])) for _ in range(2))
    heads = k_heads * v_heads * int(rng.choice([1, 2]))
    words = [f"b={rng.integers(1, 3)}", f"h={heads}", f"hk={k_heads}", f"hv={v_heads}"]
    words += [f"q={_length(rng, most)}", f"kv={_length(rng, most)}", f"d={rng.choice(_SIZES)}"]
    if _happens(rng, 0.3):
        words.append(f"dv={rng.choice(_SIZES)}")
    if _happens(rng, 0.5):
        words.append(f"causal={rng.choice(['top_left', 'bottom_right'])}")
    if _happens(rng, 0.3):
        words.append(f"left={rng.integers(0, most)}")
    if _happens(rng, 0.2):
        words.append(f"right={rng.integers(0, most)}")
    if _happens(rng, 0.3):
        words.append("lengths=yes")
    if _happens(rng, 0.3):
        words.append(f"scores={rng.choice(['bias', 'scalar', 'tanh', 'add', 'bias+tanh'])}")
    if _happens(rng, 0.2):
        words.append("dropout=0.25")
    if _happens(rng, 0.6):
        words.append("stats=yes")
    words += [f"layout={rng.choice(['bhsd', 'bshd', 'sbhd'])}", f"dtype={rng.choice(['fp16', 'bf16'])}"]
    if _happens(rng, 0.2):
        words.append(f"out={rng.choice(['fp32', 'fp16', 'bf16'])}")
    return "sdpa " + " ".join(words)


def draw_backward(rng: np.random.Generator, most: int) -> str:
    """A case of gradients with lengths up to ``most``."""
    return _backward(rng, most, *(int(rng.choice([1, 1, 2])) for _ in range(2)))


def draw_backward_shared_alike(rng: np.random.Generator, most: int) -> str:
    """The same with as many heads of k as of v."""
    heads = int(rng.choice([1, 1, 2]))
    return _backward(rng, most, heads, heads)


def _backward(rng: np.random.Generator, most: int, k_heads: int, v_heads: int) -> str:
    words = [f"b={rng.integers(1, 3)}", f"h={2 * rng.integers(1, 3)}", f"hk={k_heads}", f"hv={v_heads}"]
    words += [f"q={_length(rng, most)}", f"kv={_length(rng, most)}", f"d={rng.choice(_SIZES)}"]
    if _happens(rng, 0.3):
        words.append(f"dv={rng.choice(_SIZES)}")
    for side in ("left", "right"):
        if _happens(rng, 0.5):
            words.append(f"{side}={0 if _happens(rng, 0.4) else rng.integers(0, most)}")
    words += [f"place={rng.choice(['top_left', 'bottom_right'])}", f"lengths={rng.choice(['no', 'no', 'kv', 'both'])}"]
    words += [f"index={rng.choice(['int32', 'int64'])}", f"scale={rng.choice(['constant', 'host', 'device', 'none'])}"]
    words += [f"layout={rng.choice(['bhsd', 'bshd', 'sbhd'])}", f"dtype={rng.choice(['fp16', 'bf16'])}"]
    if _happens(rng, 0.2):
        words.append(f"out={rng.choice(['fp32', 'fp16', 'bf16'])}")
    return "sdpa_bwd " + " ".join(words)


def _happens(rng: np.random.Generator, chance: float) -> bool:
    return bool(rng.random() < chance)


def _length(rng: np.random.Generator, most: int) -> int:
    return 1 if _happens(rng, 0.1) else int(rng.integers(1, most + 1))
