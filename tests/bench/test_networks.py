"""The layers of the benchmark networks."""

from __future__ import annotations

import pytest

from lowdnn.bench.networks import network_cases, networks
from lowdnn.cases import parse_case
from lowdnn.ops.convolution import ConvolutionOperation


@pytest.mark.parametrize(
    ("name", "gigaflops"),
    [
        ("resnet50", 4.09),
        ("resnext50", 4.23),
        ("regnetx_3.2gf", 3.18),
        ("vgg16", 15.35),
        ("mobilenet_v2", 0.30),
        ("efficientnet_b0", 0.385),
        ("convnext_t", 4.46),
        ("densenet121", 2.83),
        ("inception_v3", 5.71),
        ("x3d_s", 1.96),
    ],
)
def test_multiplications_for_one_image_are_those_that_the_papers_give(name: str, gigaflops: float) -> None:
    flops = sum(count * layer.graph().operations[0].flops / layer.n for layer, count in networks()[name].items())
    assert flops / 2e9 == pytest.approx(gigaflops, rel=0.02)


def test_batches_and_dimensions() -> None:
    layers = [layer for layers in networks().values() for layer in layers]
    assert len(networks()) >= 12
    assert {len(layer.hw) for layer in layers} == {1, 2, 3}
    assert all(32 <= layer.n <= 128 for layer in layers)
    assert {layer.dir for layer in layers} == {"fprop"}


def test_every_case_is_a_graph_and_occurs_once() -> None:
    cases = list(network_cases())
    assert len({case.text for case in cases}) == len(cases)
    for case in cases:
        (operation,) = parse_case(case.text).graph().operations
        assert isinstance(operation, ConvolutionOperation)


def test_a_layer_of_two_networks_names_both() -> None:
    owners = {case.text: case.network for case in network_cases()}
    assert owners["conv n=64 c=3 hw=224x224 k=32 rs=3x3 pad=1 stride=2 dtype=bf16"].split("+") == [
        "regnetx_3.2gf",
        "mobilenet_v2",
        "efficientnet_b0",
    ]
