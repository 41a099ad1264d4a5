"""Mutations of serialised plans and graphs: seeded changes of their text and of the values in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn import frontend as cudnn
from lowdnn.arch.specs import spec_for
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.heuristics.ranking import rank
from lowdnn.heuristics.stored_plans import write_plan
from tests.support.directives import READING, SECRET

#: Cases whose plans and graphs are changed: small ones of each kind of argument, with functors, workspaces and parts.
CASES = (
    "conv n=2 c=8 hw=9x9 k=8 rs=3x3 pad=1 dtype=fp32",
    "conv n=2 c=64 hw=8x8 k=64 rs=3x3 pad=1 dtype=bf16 dir=wgrad",
    "matmul m=64 n=64 k=4096 dtype=bf16",
    "matmul b=2 m=33 n=17 k=5 dtype=fp64",
    "pointwise dims=4x5 ops=scalar+double+select+gen_index axis=1",
    "pointwise dims=64x64 ops=add+relu dtype=fp32",
    "reduction dims=32x64 axes=1 op=add dtype=fp32",
    "norm mode=layer dims=8x64 dtype=fp16",
    "softmax dims=8x64 dtype=fp32",
    "sdpa b=1 h=2 q=32 d=32 dtype=fp16",
    "transform op=transpose dims=8x16x4 perm=2,0,1 dtype=fp16",
    "rope b=1 s=8 h=2 d=16 dtype=bf16",
)

#: Values that replace any value of a document.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 0.0, -0.0, 0.5, 1e308, 5e-324, [], {}, ""),
    *(sign * 2**bits + step for bits in (7, 15, 31, 32, 62, 63, 64) for sign in (1, -1) for step in (-1, 0, 1)),
    *({"float": "nan"}, {"float": "inf"}, {"fraction": [1, 0]}, {"fraction": [-(2**63), 2**62]}, {"enum": "DataType"}),
    *(
        {"enum": "DataType", "name": "FLOAT"},
        {"enum": "KnobType", "name": "STAGES"},
        {"class": "Path"},
        {"class": "Plan"},
    ),
    *(
        [[]] * 3,
        [0] * 100,
        "x" * 5000,
        "\x00",
        "\x1b[2J",
        "\u2028",
        "\ud800",
        "../../etc/hostname",
        SECRET,
        f"{SECRET}\0.cu",
    ),
    *("__import__('os').system('true')", "%s%n", "${HOME}", "sm_90a", "a.cu", "KERNEL_NAME", "value0 + value1"),
    *READING,
)

#: Pieces of text that replace a number or a string of a document.
TOKENS = (
    *("1e999", "-1e999", "NaN", "Infinity", "9" * 5000, "-" + "9" * 25, "0x10", "01", "1."),
    *('"\\ud800"', '"\\u0000"', "[" * 300),
)


@dataclass(frozen=True)
class Document:
    """A valid document. kind: ``plan``, ``pygraph`` or ``operations``, which says who reads it."""

    kind: str
    name: str
    text: str


def corpus(compute_capability: tuple[int, int] = (9, 0)) -> tuple[Document, ...]:
    """Documents of all cases, for a device of this capability."""
    arch = spec_for(*compute_capability).with_sm_count(1)
    found: list[Document] = []
    for line in CASES:
        graph = parse_case(line).graph()
        found.append(Document("operations", line, graph.to_json()))
        for candidate in rank(graph, arch, HeurMode.A, ENGINES).candidates[:2]:
            found.append(Document("plan", line, write_plan(candidate)))
    found += [Document("pygraph", name, text) for name, text in _pygraphs(10 * arch.compute_capability[0])]
    return tuple(found)


def mutated(rng: np.random.Generator, documents: Sequence[Document]) -> tuple[Document, str | bytes]:
    """One of the documents, and its text with one to three changes."""
    document = documents[rng.integers(len(documents))]
    if rng.random() < 0.25:
        return document, _changed_text(rng, document.text)
    content = json.loads(document.text)
    for _ in range(int(rng.integers(1, 4))):
        change = TREE_CHANGES[rng.integers(len(TREE_CHANGES))]
        if _places(content):
            change(rng, content, documents)
    return document, json.dumps(content)


def _pygraphs(sm_version: int) -> Iterator[tuple[str, str]]:
    kinds = cudnn.data_type
    graph = pygraph("chain", kinds.FLOAT, kinds.FLOAT, kinds.FLOAT, sm_version=sm_version, sm_count=1)
    x = graph.tensor([4, 8], name="x")
    y = graph.mul(graph.relu(graph.add(x, 1.0)), graph.tensor_scalar(3.0, name="scale"))
    y.set_output(True).set_name("y")
    yield "chain", _planned(graph)
    graph = pygraph("mlp", kinds.HALF, kinds.FLOAT, kinds.FLOAT, sm_version=sm_version, sm_count=1)
    a, b = graph.tensor([1, 16, 32], name="a"), graph.tensor([1, 32, 24], name="b")
    graph.relu(graph.matmul(a, b)).set_output(True).set_data_type(kinds.HALF)
    yield "mlp", _planned(graph)


def _planned(graph: pygraph) -> str:
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    return str(graph.serialize())


def _changed_text(rng: np.random.Generator, text: str) -> str | bytes:
    """The text with a change of characters, whatever they mean in JSON."""
    start, length = int(rng.integers(len(text))), int(rng.integers(1, 40))
    piece = text[start : start + length]
    kind = rng.integers(6)
    if kind == 0:
        data = bytearray(text.encode())
        for _ in range(int(rng.integers(1, 5))):
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        return bytes(data)
    if kind == 1:
        return text[:start] + text[start + length :]
    if kind == 2:
        return text[:start] + piece * int(rng.integers(2, 5)) + text[start + length :]
    if kind == 3:
        return text[:start]
    if kind == 4:
        colon = text.find(":", start)
        return text[: colon + 1] + TOKENS[rng.integers(len(TOKENS))] + text[colon + 1 :]
    key = text.rfind('"', 0, start)
    return text[: key + 1] + str(VALUES[rng.integers(len(VALUES))]) + text[key + 1 :]


#: (container, its key or index) of a value.
_Place = tuple[Any, Any]


def _places(content: Any) -> list[_Place]:
    found: list[_Place] = []
    waiting = [content]
    while waiting:
        container = waiting.pop()
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            found.append((container, key))
            if isinstance(value, (dict, list)):
                waiting.append(value)
    return found


def _place(rng: np.random.Generator, content: Any) -> _Place:
    """The place of a random value; lists and objects are drawn more often than leaves."""
    places = _places(content)
    if rng.random() < 0.3:
        places = [place for place in places if isinstance(place[0][place[1]], (dict, list))] or places
    return places[rng.integers(len(places))]


def _replace(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    container, key = _place(rng, content)
    container[key] = VALUES[rng.integers(len(VALUES))]


def _nudge(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    """Replaces a number by one near or related to it."""
    numbers = [(c, k) for c, k in _places(content) if type(c[k]) in (int, float)]
    if not numbers:
        return
    container, key = numbers[rng.integers(len(numbers))]
    number = container[key]
    container[key] = (number + 1, number - 1, -number, number * 2, number // 2, float(number))[rng.integers(6)]


def _delete(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    container, key = _place(rng, content)
    del container[key]


def _duplicate(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    lists = [c for c, _ in _places(content) if isinstance(c, list)]
    if lists:
        chosen = lists[rng.integers(len(lists))]
        chosen.insert(int(rng.integers(len(chosen) + 1)), chosen[rng.integers(len(chosen))])


def _swap(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    (first, a), (second, b) = _place(rng, content), _place(rng, content)
    copy = json.loads(json.dumps([first[a], second[b]]))
    second[b], first[a] = copy


def _rename(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    """Replaces the name of a class, enum, member, engine or device by one of another document."""
    names = [(c, k) for c, k in _places(content) if k in ("class", "enum", "name", "engine", "arch")]
    others = [(c, k) for c, k in _places(_other(rng, documents)) if k in ("class", "enum", "name", "engine", "arch")]
    if names and others:
        container, key = names[rng.integers(len(names))]
        alike = [place for place in others if place[1] == key] or others
        source, other = alike[rng.integers(len(alike))]
        container[key] = source[other]


def _nest(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    container, key = _place(rng, content)
    levels = int(rng.choice([1, 2, 60, 200]))
    for _ in range(levels):
        container[key] = [container[key]] if rng.random() < 0.7 else {"class": "Struct", "fields": [container[key]]}


def _splice(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    """Replaces a value by one that another document has under the same key."""
    container, key = _place(rng, content)
    others = [(c, k) for c, k in _places(_other(rng, documents)) if k == key]
    if others:
        source, other = others[rng.integers(len(others))]
        container[key] = source[other]


def _extend(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    """Adds a key that no document has."""
    objects = [c[k] for c, k in _places(content) if isinstance(c[k], dict)]
    chosen = objects[rng.integers(len(objects))] if objects else content
    key = ("__class__", "rebuild", "trusted", "image", "cubin", "path", "__init__", "\n")[rng.integers(8)]
    chosen[key] = VALUES[rng.integers(len(VALUES))]


def _reset(rng: np.random.Generator, content: Any, documents: Sequence[Document]) -> None:
    """Replaces version, device, engine or knobs, at the head of the document or of the plan inside it."""
    inner = content.get("plan")
    head = inner if "tensors" in content and isinstance(inner, dict) else content
    key = ("lowdnn", "arch", "sm_count", "engine", "choices", "lowdnn_plan", "lowdnn_graph")[rng.integers(7)]
    values: tuple[Any, ...] = ("0.0.1", "sm_80", "sm_90a", 1, 2, 132, "composite", {}, {"TILE_M": 64}, "pointwise")
    head[key] = values[rng.integers(len(values))]


def _other(rng: np.random.Generator, documents: Sequence[Document]) -> Any:
    return json.loads(documents[rng.integers(len(documents))].text)


Change = Callable[[np.random.Generator, Any, Sequence[Document]], None]
TREE_CHANGES: tuple[Change, ...] = (
    *(_replace, _replace, _nudge, _nudge, _delete, _duplicate, _swap),
    *(_rename, _nest, _splice, _splice, _extend, _reset),
)
