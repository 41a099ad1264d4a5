from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import HeurMode, KnobType
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.runtime import Runtime
from tests.engines.resample.test_resample import check

ENGINE = engine_named("resample_reduction")
TILE = (KnobType.LOAD_SIZE, KnobType.TILE_ROWS, KnobType.TILE_COLS)


@pytest.mark.parametrize(
    "text",
    [
        "resample n=2 c=8 hw=7x7 mode=avg window=7 layout=nchw dtype=bf16 epilogue=relu",
        "resample n=2 c=8 hw=7x5 mode=avg_inside window=9x6 pad=1:1x0:1",
        "resample n=2 c=8 hw=7x5 mode=max size=1x1",
        "resample n=2 c=8 hw=7x7 mode=avg window=7 dir=bwd layout=nchw dtype=bf16 epilogue=relu",
        "resample n=2 c=8 hw=7x5 mode=avg_inside window=9x6 pad=1:1x0:1 dir=bwd layout=nchw",
        "resample n=2 c=8 hw=3x4x5 mode=avg size=1x1x1 dir=bwd dtype=fp64 compute=fp64",
    ],
)
def test_global_pooling(device: Runtime, text: str) -> None:
    check(device, text, ENGINE)


@pytest.mark.parametrize(("n", "channels"), [(32, 2), (1024, 4)])
def test_threads_of_resample_write_small_channels_last_gradients(n: int, channels: int) -> None:
    graph = parse_case(f"resample n={n} c=2048 hw=7x7 mode=avg window=7 dir=bwd dtype=bf16").graph()
    best = rank(graph, SM_90A, HeurMode.A, ENGINES).best.plan
    assert best.engine == "resample"
    assert [dict(best.choices)[kind] for kind in TILE] == [channels, 7, 7]


def test_too_few_threads_for_whole_images_leave_them_to_the_quotient() -> None:
    graph = parse_case("resample n=1 c=2048 hw=7x7 mode=avg window=7 dir=bwd dtype=bf16").graph()
    assert rank(graph, SM_90A, HeurMode.A, ENGINES).best.plan.engine == "resample_reduction"


@pytest.mark.parametrize(
    "text", ["window=7x5 mode=avg hw=7x5 epilogue=relu", "mode=avg_inside hw=7x5 window=9x6 pad=1:1x0:1"]
)
def test_whole_images_of_a_thread(device: Runtime, text: str) -> None:
    check(device, f"resample n=2 c=8 {text} dir=bwd dtype=bf16", engine_named("resample"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mode=avg hw=7x5 window=6x5", "window_dims: expected one window over all 7 positions, got 2 of 6"),
        (
            "mode=avg hw=7x5 window=9x6 pad=1:1x0:1",
            "pre_paddings: expected windows without padding for AVGPOOL, got some",
        ),
        ("mode=max hw=7x5 window=7x5 nan=loses", "nan_propagation: expected PROPAGATE_NAN, got NOT_PROPAGATE_NAN"),
        ("mode=max hw=7x5 window=7x5 index=int8", "index: expected none, got tensor 'index'"),
        ("mode=max hw=7x5 window=7x5 dir=bwd nan=wins", "mode: expected an average for a gradient, got MAXPOOL"),
        ("mode=linear hw=2x2", "mode: expected an average or a maximum, got BILINEAR"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    refusal = ENGINE.refuse(parse_case(f"resample n=2 c=8 {text}").graph(), SM_90A)
    assert refusal is not None
    assert reason in refusal.reason


def test_it_comes_first_where_rows_are_contiguous() -> None:
    for n in (1, 32, 256):
        graph = parse_case(f"resample n={n} c=2048 hw=7x7 mode=avg window=7 dtype=bf16 layout=nchw").graph()
        assert rank(graph, SM_90A, HeurMode.A, ENGINES).candidates[0].engine is ENGINE
