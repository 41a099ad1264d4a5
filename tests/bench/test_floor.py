"""The floors of the benchmark cases: the bytes that must move."""

from __future__ import annotations

import pytest

from lowdnn.bench.floor import H100, H200, card_named, data_bytes, floor_us, moved_bytes, product_flops
from lowdnn.cases import parse_case
from lowdnn.status import NotSupportedError

_MIB = 2**20


def _moved(text: str) -> int:
    return moved_bytes(parse_case(text).graph())


@pytest.mark.parametrize(
    ("case", "size_bytes"),
    [
        ("norm dims=1024x512 mode=rms scale=scale dtype=bf16", 2 * _MIB + 4 * (1024 + 512)),
        ("norm dims=1024x512 mode=layer dtype=bf16", 2 * _MIB + 4 * (2 * 1024 + 2 * 512)),
        ("norm dims=1024x512 mode=layer dtype=bf16 before=residual+store", 4 * _MIB + 4 * (2 * 1024 + 2 * 512)),
        ("norm dims=1024x512 mode=layer dtype=bf16 dir=bwd", 3 * _MIB + 4 * (2 * 1024 + 3 * 512)),
        ("softmax dims=1024x512 dtype=bf16 dir=bwd", 3 * _MIB),
        ("reduction dims=1024x512 axes=1 op=add dtype=bf16 out=fp32", _MIB + 4 * 1024),
        ("pointwise dims=1024x512 ops=double dtype=bf16", 2 * _MIB),
    ],
)
def test_each_tensor_in_memory_moves_once(case: str, size_bytes: int) -> None:
    assert _moved(case) == size_bytes


@pytest.mark.parametrize(
    ("direction", "images", "passes"), [("fwd", 14, 2), ("fwd", 15, 3), ("bwd", 14, 3), ("bwd", 15, 5)]
)
def test_a_batch_norm_too_large_for_the_chip_reads_twice(direction: str, images: int, passes: int) -> None:
    """14 images of 2 MiB are less than 29.3 MiB, 15 are more."""
    case = f"norm dims={images}x64x128x128 mode=batch layout=nhwc dtype=bf16 dir={direction}"
    parameters = {"fwd": 4, "bwd": 5}[direction] * 64 * 4
    assert _moved(case) == passes * images * 2 * _MIB + parameters


def test_an_instance_norm_of_any_size_reads_once() -> None:
    graph = parse_case("norm dims=64x64x128x128 mode=instance dtype=bf16").graph()
    assert moved_bytes(graph) == data_bytes(graph)


def test_the_floor_is_that_of_the_bytes_or_of_the_arithmetic() -> None:
    norm, product = (
        parse_case(text).graph()
        for text in ("norm dims=16384x4096 mode=rms scale=scale dtype=bf16", "matmul m=8192 n=8192 k=8192 dtype=bf16")
    )
    assert floor_us(norm, H200) == pytest.approx(moved_bytes(norm) / 4.3e6)
    assert floor_us(norm, H100) == pytest.approx(moved_bytes(norm) / 2.95e6)
    assert floor_us(product, H200) == floor_us(product, H100) == pytest.approx(2 * 8192**3 / 790e6)


def test_a_card_is_known_by_its_name() -> None:
    assert card_named("NVIDIA H100 80GB HBM3") is H100
    assert card_named("NVIDIA H200") is H200
    with pytest.raises(NotSupportedError, match=r"device.name: expected a card out of H200, H100, got NVIDIA H2000"):
        card_named("NVIDIA H2000")


def test_ragged_attention_is_counted_as_of_sequences_of_one_length() -> None:
    ragged, padded = (
        product_flops(parse_case(text).graph())
        for text in ("sdpa b=8 h=2 q=128 d=64 ragged=yes lengths=yes", "sdpa b=8 h=2 q=64 d=64")
    )
    assert ragged == padded
