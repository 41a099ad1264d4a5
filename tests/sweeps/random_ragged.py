"""Random attention of ragged tensors that end with their last sequence, and gradients of it.

python -m tests.sweeps.random_ragged COUNT [--seed N]        so many of both kinds, on the emulated device
"""

from __future__ import annotations

import numpy as np

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.compare import expected_outputs
from lowdnn.cases.families.attention_backward import AttentionBackwardCase
from lowdnn.engines.base import Engine
from lowdnn.engines.registry import ENGINES
from lowdnn.runtime.runtime import Runtime
from tests.support.ragged import with_random_sequences
from tests.support.running import assert_outputs, run_plan

_SIZES = (8, 16, 24, 40, 64, 72, 96, 128, 192, 256)


def draw(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case of ragged attention with lengths up to ``most``; its kernel depends on draws from ``kernel`` alone."""
    words = [*_heads(kernel, numbers, most, 8 if kernel.random() < 0.3 else most), "ragged=yes"]
    words.append(f"lengths={kernel.choice(['no', 'yes', 'both'])}")
    words.append(f"stats={kernel.choice(['no', 'yes', 'lse', 'log2'])}")
    for word, chance in {"causal=top_left": 0.3, "causal=bottom_right": 0.2, f"left={most // 3}": 0.3}.items():
        if numbers.random() < chance and not (word.startswith("causal") and words[-1].startswith("causal")):
            words.append(word)
    for word, chance in {"dropout=0.25": 0.2, "sink=yes": 0.3, "scores=tanh": 0.15, "scores=bias": 0.15}.items():
        if kernel.random() < chance and not (word.startswith("scores") and words[-1].startswith("scores")):
            words.append(word)
    return "sdpa " + " ".join(words)


def draw_backward(kernel: np.random.Generator, numbers: np.random.Generator, most: int) -> str:
    """A case of the gradients, drawn as ``draw`` does."""
    words = [*_heads(kernel, numbers, most, most), "ragged=yes", f"lengths={numbers.choice(['no', 'kv', 'both'])}"]
    words.append(f"right={numbers.choice([-1, 0, most // 4])}")
    for word, chance in {"alibi=yes": 0.2, "dropout=0.25": 0.3, "bias=bh": 0.3}.items():
        if kernel.random() < chance:
            words.append(word)
    return "sdpa_bwd " + " ".join(words)


def engines_of(line: str) -> list[Engine]:
    """The engines that take the case whole."""
    graph = parse_case(line).graph()
    return [engine for engine in ENGINES if engine.name != "composite" and engine.refuse(graph, SM_90A) is None]


def check(runtime: Runtime, engine: Engine, line: str, seed: int) -> None:
    """Runs the case with sequences of random lengths in tensors that end with the last one."""
    case, rng = parse_case(line), np.random.default_rng(seed)
    graph, is_backward = case.graph(), isinstance(case, AttentionBackwardCase)
    inputs = case.inputs(seed, exact=False)
    inputs = with_random_sequences(rng, graph, inputs, are_shared=is_backward or rng.random() < 0.5)
    if isinstance(case, AttentionBackwardCase):
        inputs = case.with_results(inputs)
    plan = engine.plan(graph, SM_90A, {})
    expected = expected_outputs(graph, inputs, plan.numerical_notes, case.length)
    context = f"{engine.name}, seed {seed}, {line}"
    assert_outputs(run_plan(runtime, plan, graph, inputs), expected, graph, inputs, context)


def _heads(kernel: np.random.Generator, numbers: np.random.Generator, most: int, most_queries: int) -> list[str]:
    k_heads, v_heads = (int(numbers.choice([1, 1, 2])) for _ in range(2))
    heads, batch = k_heads * v_heads * int(numbers.choice([1, 2])), numbers.integers(1, 5)
    words = [f"b={batch}", f"h={heads}", f"hk={k_heads}", f"hv={v_heads}"]
    words += [f"q={numbers.integers(1, most_queries + 1)}", f"kv={numbers.integers(1, most + 1)}"]
    words += [f"d={kernel.choice(_SIZES)}", f"dtype={kernel.choice(['fp16', 'bf16'])}"]
    return [*words, f"dv={kernel.choice(_SIZES)}"] if kernel.random() < 0.3 else words
