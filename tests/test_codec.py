from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest

from lowdnn.codec import Codec, read_document, write_document
from lowdnn.status import BadParamError, SerializationVersionMismatchError
from tests.support.errors import raises


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Leaf:
    count: int
    weight: float
    label: str | None
    flag: bool = False


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    pair: tuple[int, Colour]


@dataclass(frozen=True)
class Ratios:
    values: tuple[int | Fraction, ...]


CODEC = Codec((Leaf, Tree, Ratios), (Colour,))
TREE = Tree((Leaf(1, 2.0, "a"), Leaf(-3, math.inf, None, True)), (7, Colour.RED))


def change(path: tuple[Any, ...], value: Any) -> Any:
    """The JSON form of TREE with one place replaced."""
    document = CODEC.encode(TREE)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


def test_round_trip_through_text() -> None:
    text = json.dumps(CODEC.encode(TREE), allow_nan=False)
    assert CODEC.decode(json.loads(text), Tree, "tree") == TREE


def test_fractions() -> None:
    ratios = Ratios((2, Fraction(-1, 3)))
    document = CODEC.encode(ratios)
    assert document["values"] == [2, {"fraction": [-1, 3]}]
    assert CODEC.decode(document, Ratios, "ratios") == ratios
    for parts in ([1, 0], [1], "1/2", [1, 2.0]):
        with raises(BadParamError, "ratios.values[0]", expected="[numerator, denominator]", got=str(parts)):
            CODEC.decode({"class": "Ratios", "values": [{"fraction": parts}]}, Ratios, "ratios")


@pytest.mark.parametrize(
    ("path", "value", "where", "expected"),
    [
        (("leaves", 0, "count"), "1", "tree.leaves[0].count", "int"),
        (("leaves", 0, "count"), True, "tree.leaves[0].count", "int"),
        (("leaves", 0, "count"), 1.0, "tree.leaves[0].count", "int"),
        (("leaves", 0, "flag"), 1, "tree.leaves[0].flag", "bool"),
        (("leaves", 1, "label"), 5, "tree.leaves[1].label", "str"),
        (("leaves", 1, "weight"), {"float": "1e3"}, "tree.leaves[1].weight", "inf"),
        (("leaves", 0), 3, "tree.leaves", "Leaf"),
        (("pair",), [1], "tree.pair", "tuple"),
        (("pair", 1), {"enum": "Colour", "name": "BLUE"}, "tree.pair[1]", "enum"),
        (("pair", 1), {"enum": "Status", "name": "SUCCESS"}, "tree.pair[1]", "enum"),
        (("pair", 1), {"enum": ["Colour"], "name": "RED"}, "tree.pair[1]", "enum"),
        (("class",), "Path", "tree", "Leaf"),
        (("class",), ["Tree"], "tree", "Leaf"),
        (("extra",), 1, "tree", "fields of Tree"),
    ],
)
def test_malformed_values_are_named(path: tuple[Any, ...], value: Any, where: str, expected: str) -> None:
    with raises(BadParamError, where, expected=expected):
        CODEC.decode(change(path, value), Tree, "tree")


def test_missing_fields_and_other_classes() -> None:
    document = CODEC.encode(TREE)
    del document["pair"]
    with raises(BadParamError, "tree", expected="the fields of Tree", got="leaves"):
        CODEC.decode(document, Tree, "tree")
    with raises(BadParamError, "tree", expected="Tree", got="Leaf"):
        CODEC.decode(CODEC.encode(TREE.leaves[0]), Tree, "tree")


def test_documents() -> None:
    assert write_document("kind", 3, "body", [1]) == '{"kind":3,"body":[1]}'
    assert read_document('{"kind":3,"body":[1]}', "kind", 3, "body", "file") == [1]
    for text in ('{"kind":4,"body":1}', "[]", '{"body":1}', "null"):
        with raises(SerializationVersionMismatchError, "file.kind", expected="3"):
            read_document(text, "kind", 3, "body", "file")
    for text in ("", "{", "[" * 100_000):
        with raises(BadParamError, "file", expected="a JSON document"):
            read_document(text, "kind", 3, "body", "file")
