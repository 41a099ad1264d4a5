from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest

from lowdnn.codec import Codec, encode
from lowdnn.status import BadParamError
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
    document = encode(TREE)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


def test_round_trip_through_text() -> None:
    text = json.dumps(encode(TREE), allow_nan=False)
    assert CODEC.decode(json.loads(text), Tree, "tree") == TREE


def test_fractions() -> None:
    ratios = Ratios((2, Fraction(-1, 3)))
    document = encode(ratios)
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
    document = encode(TREE)
    del document["pair"]
    with raises(BadParamError, "tree", expected="the fields of Tree", got="leaves"):
        CODEC.decode(document, Tree, "tree")
    with raises(BadParamError, "tree", expected="Tree", got="Leaf"):
        CODEC.decode(encode(TREE.leaves[0]), Tree, "tree")


def test_names_are_short_and_printable() -> None:
    for label in ("two\nlines", "\x1b[2J", "\u2028", "\ud800", "x" * 1025):
        with raises(BadParamError, "tree.leaves[0].label", expected="without control characters"):
            CODEC.decode(change(("leaves", 0, "label"), label), Tree, "tree")
    assert (
        CODEC.decode(change(("leaves", 0, "label"), "naïve 名前 ::X"), Tree, "tree").leaves[0].label == "naïve 名前 ::X"
    )


def test_forms_have_nothing_beside_them() -> None:
    for value in (
        {"enum": "Colour", "name": "RED", "class": "Leaf"},
        {"float": "inf", "x": 1},
        {"fraction": [1, 2], "y": 0},
    ):
        with raises(BadParamError, "tree.pair[1]", expected="Leaf"):
            CODEC.decode(change(("pair", 1), value), Tree, "tree")


def test_integers_have_64_bits() -> None:
    for count in (2**63, -(2**63) - 1):
        with raises(BadParamError, "tree.leaves[0].count", expected="int, of 64 bits", got=str(count)):
            CODEC.decode(change(("leaves", 0, "count"), count), Tree, "tree")
