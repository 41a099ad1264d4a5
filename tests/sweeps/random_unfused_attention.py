"""Random attention and gradients of it that no kernel of attention takes: lines of text of sizes, types and forms that
run as chains of plans."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tests.sweeps.random_attention import happens, heads_of

#: Sizes of heads, none of which is a multiple of 8 up to 256.
_SIZES = (1, 3, 12, 20, 264)
_TYPES, _FP8 = ("fp16", "bf16", "fp32", "fp64"), ("e4m3", "e5m2")
_BIASES = ("bh", "1h", "b1", "11")


def draw(rng: np.random.Generator, most: int) -> str:
    """A case of attention with lengths up to ``most``."""
    is_fp8 = happens(rng, 0.2)
    words = [*_heads(rng, most), f"dtype={rng.choice(_FP8 if is_fp8 else _TYPES)}"]
    words += _perhaps(rng, 0.5, "causal", ("top_left", "bottom_right"))
    words += _perhaps(rng, 0.3, "left", range(most)) + _perhaps(rng, 0.2, "right", range(most))
    match int(rng.integers(5)):
        case 0:
            words += ["lengths=yes", f"page={1 << rng.integers(0, 4)}"]
        case 1 | 2:
            words += ["ragged=yes", f"lengths={rng.choice(['no', 'yes'])}"]
        case 3:
            words.append(f"lengths={rng.choice(['yes', 'both'])}")
    words += _perhaps(rng, 0.3, "scores", ("bias", "scalar", "tanh", "add", "bias+tanh"))
    words += [] if is_fp8 else _perhaps(rng, 0.2, "dropout", (0.25,))
    words += _perhaps(rng, 0.7, "stats", ("yes", "lse", "log2"))
    words += _perhaps(rng, 0.2, "sink", ("yes",)) + _perhaps(rng, 0.2, "blocks", ("yes",))
    return "sdpa " + " ".join([*words, *_form(rng)])


def draw_backward(rng: np.random.Generator, most: int) -> str:
    """A case of gradients, drawn likewise."""
    is_fp8 = happens(rng, 0.2)
    words = [*_heads(rng, most), f"dtype={rng.choice(_FP8 if is_fp8 else _TYPES)}"]
    words += _perhaps(rng, 0.5, "left", range(most)) + _perhaps(rng, 0.5, "right", range(most))
    words += [f"place={rng.choice(['top_left', 'bottom_right'])}", f"lengths={rng.choice(['no', 'kv', 'both'])}"]
    words += [f"index={rng.choice(['int32', 'int64'])}", f"scale={rng.choice(['constant', 'host', 'device', 'none'])}"]
    if is_fp8:
        words.append(f"d_o={rng.choice(_FP8)}")
    else:
        words += _perhaps(rng, 0.3, "bias", _BIASES) + _perhaps(rng, 0.2, "cap", (2,))
        words += _perhaps(rng, 0.2, "alibi", ("yes",))
    if happens(rng, 0.3):
        words += ["dropout=0.25", f"masked={rng.choice(['no', 'yes'])}"]
    words += _perhaps(rng, 0.3, "ragged", ("yes",))
    return "sdpa_bwd " + " ".join([*words, *_form(rng)])


def _heads(rng: np.random.Generator, most: int) -> list[str]:
    k_heads, v_heads, heads = heads_of(rng)
    words = [f"b={rng.integers(1, 4)}", f"h={heads}", f"hk={k_heads}", f"hv={v_heads}"]
    words += [f"q={rng.integers(1, most)}", f"kv={rng.integers(1, most)}", f"d={rng.choice(_SIZES)}"]
    return words + _perhaps(rng, 0.3, "dv", (1, 5, 16, 24, 264))


def _form(rng: np.random.Generator) -> list[str]:
    return [f"layout={rng.choice(['bhsd', 'bshd', 'sbhd'])}", *_perhaps(rng, 0.2, "out", ("fp32", "fp16", "bf16"))]


def _perhaps(rng: np.random.Generator, chance: float, key: str, values: Iterable[object]) -> list[str]:
    return [f"{key}={rng.choice(list(values))}"] if happens(rng, chance) else []
