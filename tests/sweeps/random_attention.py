"""Random attention: lines of text that cross sizes, heads, masks, dropout, layouts and statistics."""

from __future__ import annotations

import numpy as np

_SIZES = (8, 16, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256)


def draw(rng: np.random.Generator, most: int) -> str:
    """A case with lengths up to ``most``."""

    def happens(chance: float) -> bool:
        return bool(rng.random() < chance)

    def length() -> int:
        return 1 if happens(0.1) else int(rng.integers(1, most + 1))

    k_heads, v_heads = (int(rng.choice([1, 1, 2])) for _ in range(2))
    heads = k_heads * v_heads * int(rng.choice([1, 2]))
    words = [f"b={rng.integers(1, 3)}", f"h={heads}", f"hk={k_heads}", f"hv={v_heads}"]
    words += [f"q={length()}", f"kv={length()}", f"d={rng.choice(_SIZES)}"]
    if happens(0.3):
        words.append(f"dv={rng.choice(_SIZES)}")
    if happens(0.5):
        words.append(f"causal={rng.choice(['top_left', 'bottom_right'])}")
    if happens(0.3):
        words.append(f"left={rng.integers(0, most)}")
    if happens(0.2):
        words.append(f"right={rng.integers(0, most)}")
    if happens(0.3):
        words.append("lengths=yes")
    if happens(0.3):
        words.append(f"scores={rng.choice(['bias', 'scalar', 'tanh', 'add', 'bias+tanh'])}")
    if happens(0.2):
        words.append("dropout=0.25")
    if happens(0.6):
        words.append("stats=yes")
    words += [f"layout={rng.choice(['bhsd', 'bshd', 'sbhd'])}", f"dtype={rng.choice(['fp16', 'bf16'])}"]
    if happens(0.2):
        words.append(f"out={rng.choice(['fp32', 'fp16', 'bf16'])}")
    return "sdpa " + " ".join(words)
