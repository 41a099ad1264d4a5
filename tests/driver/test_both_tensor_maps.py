"""Tensor maps on the emulated device and on a GPU: kernels copy with what the driver encodes; the rules are its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn.driver import cuda
from lowdnn.driver.base import Driver
from lowdnn.tensor_map import Im2colMap, TensorMapSwizzle, TiledMap
from tests.driver.board import Board, fails_with, line, opened
from tests.driver.emulated.copying.tensor_cases import (
    SWIZZLES,
    pixel_start,
    random_im2col,
    random_tiled,
    tensor_bytes,
    tile_start,
)
from tests.driver.emulated.copying.tensor_kernels import load_kernel
from tests.driver.emulated.copying.test_tensor_copies import box_bytes, finite_bytes, loaded, shown_bytes, sources
from tests.test_tensor_map import (
    BROKEN_IM2COL,
    BROKEN_TILED,
    EXTREME_IM2COL,
    EXTREME_TILED,
    IM2COL,
    TILED,
    TOO_LARGE_IM2COL,
    TOO_LARGE_TILED,
)


def encoded(driver: Driver, description: TiledMap | Im2colMap) -> bytes:
    if isinstance(description, TiledMap):
        return driver.tensor_map_encode_tiled(description)
    return driver.tensor_map_encode_im2col(description)


def check_load(
    board: Board, rng: np.random.Generator, description: TiledMap | Im2colMap, replaced: bool = False
) -> None:
    """One copy at a random place; ``replaced``: with a map that was made for another tensor."""
    at, offsets = start(rng, description)
    data = finite_bytes(rng, tensor_bytes(description))
    tensor = board.put(data, "tensor")
    if replaced:
        other = board.empty(data.nbytes, "other")
        content = board.driver.tensor_map_replace_address(
            encoded(board.driver, replace(description, address=other)), tensor
        )
    else:
        content = encoded(board.driver, replace(description, address=tensor))
    function = board.function(load_kernel(description.rank, isinstance(description, Im2colMap)), "load")
    nbytes, shown = box_bytes(description), shown_bytes(description, box_bytes(description))
    copies, out = board.put(np.array([*at, *offsets], np.int32)), board.empty(shown)
    counts = (np.int32(shown), np.int32(nbytes), np.int32(0))
    wanted = loaded(description, data, sources(description, at, offsets), 0, nbytes)
    lands = wanted != 0xEE
    board.launch(function, line(1, 32, shown + 1024), content, copies, out, *counts)
    np.testing.assert_array_equal(
        board.get(out, shown, np.uint8)[lands], wanted[lands], err_msg=f"{description} {at} {offsets}"
    )


def start(rng: np.random.Generator, description: TiledMap | Im2colMap) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(description, TiledMap):
        return tile_start(rng, description), ()
    return pixel_start(rng, description)


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_tiled_loads(unchecked_board: Board, rng: np.random.Generator, rank: int, swizzle: TensorMapSwizzle) -> None:
    check_load(unchecked_board, rng, random_tiled(rng, rank, swizzle))


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_im2col_loads(unchecked_board: Board, rng: np.random.Generator, rank: int) -> None:
    check_load(unchecked_board, rng, random_im2col(rng, rank))


@pytest.mark.parametrize("rank", [2, 5])
def test_a_replaced_address(unchecked_board: Board, rng: np.random.Generator, rank: int) -> None:
    check_load(unchecked_board, rng, random_tiled(rng, rank), replaced=True)


@pytest.mark.parametrize("description", [*EXTREME_TILED, *EXTREME_IM2COL])
def test_the_furthest_that_the_rules_allow(board: Board, description: Any) -> None:
    assert len(encoded(board.driver, description)) == 128


def test_encoding_needs_a_context(board: Board) -> None:
    board.driver.context_set_current(0)
    fails_with("INVALID_CONTEXT", lambda: encoded(board.driver, TILED))
    fails_with("INVALID_CONTEXT", lambda: encoded(board.driver, IM2COL))
    board.driver.context_set_current(board.context)


def _is_the_drivers(field: str, problem: str) -> bool:
    """The driver is never told how many numbers there are, its bindings take no more than five dimensions, and an
    extent of 2**31 pixels wraps around in its arithmetic."""
    return "numbers" not in problem and "got 6" not in problem and (field, problem[:12]) != ("dims", "upper_corner")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "description",
    [
        *(
            replace(TILED, **{field: value})
            for field, value, problem in BROKEN_TILED
            if _is_the_drivers(field, problem)
        ),
        *(
            replace(IM2COL, **{field: value})
            for field, value, problem in BROKEN_IM2COL
            if _is_the_drivers(field, problem)
        ),
        TOO_LARGE_TILED,
        TOO_LARGE_IM2COL,
    ],
)
def test_the_rules_are_the_drivers_own(
    cuda_driver: Driver, monkeypatch: pytest.MonkeyPatch, description: TiledMap | Im2colMap
) -> None:
    monkeypatch.setattr(cuda, "tiled_map_problem", lambda _: "")
    monkeypatch.setattr(cuda, "im2col_map_problem", lambda _: "")
    with opened(cuda_driver):
        fails_with("INVALID_VALUE", lambda: encoded(cuda_driver, description))
