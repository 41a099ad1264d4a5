"""The convolution layers of real networks in three directions: the table ``networks.txt``.

A section of the table is a network. Each of its lines is a number, how often the network has a layer, and the case of
the layer's forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from lowdnn.bench.suites import NETWORK_LAYERS, SuiteCase, sections, suite_cases
from lowdnn.cases import parse_case
from lowdnn.cases.families.convolution import ConvolutionCase

DIRECTIONS = ("fprop", "dgrad", "wgrad")

_TABLE = Path(__file__).resolve().parent / "networks.txt"


@cache
def networks() -> Mapping[str, Mapping[ConvolutionCase, int]]:
    """For each network its distinct layers, in the order of their first occurrence, and how often each occurs."""
    found: dict[str, dict[ConvolutionCase, int]] = {}
    for network, line in sections(_TABLE.read_text(encoding="utf-8").splitlines()):
        count, _, text = line.partition(" ")
        layer = parse_case(text)
        if not isinstance(layer, ConvolutionCase):
            raise TypeError(f"{_TABLE.name}: expected convolutions, got {text}")
        found.setdefault(network, {})[layer] = int(count)
    return found


def network_cases() -> Iterator[SuiteCase]:
    """A case for each distinct layer of all networks and each direction, with the names of its networks."""
    owners: dict[ConvolutionCase, list[str]] = {}
    for network, layers in networks().items():
        for layer in layers:
            owners.setdefault(layer, []).append(network)
    for layer, names in owners.items():
        for direction in DIRECTIONS:
            yield SuiteCase(NETWORK_LAYERS, str(replace(layer, dir=direction)), "+".join(names))


def cases_of(suite: str) -> list[SuiteCase]:
    """The cases of a suite; those of ``conv`` with the layers of the networks behind them."""
    cases = suite_cases(suite)
    return cases if suite != "conv" else list(dict.fromkeys([*cases, *network_cases()]))
