from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.conv.wgmma.conv_prologue_wgmma import ConvPrologueWgmma
from lowdnn.engines.conv.wgmma.im2col_choice import Im2colChoice
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, Status
from tests.support.running import check_close, check_exact

ENGINE = ConvPrologueWgmma()
#: A device with so few multiprocessors that each block has several tiles.
SMALL = SM_90A.with_sm_count(3)
COOPERATIVE, PING_PONG, TWO_BLOCKS = range(3)
REGISTERS, WINDOWS, KEPT_FILTER = range(3)


def check(device: Runtime, line: str, **choices: int) -> Plan:
    """Runs a case; ``choices``: knobs by name."""
    case = parse_case(line)
    chosen = {KnobType[name]: value for name, value in choices.items()}
    return check_exact(device, ENGINE, case.graph(), length=case.exact_length, choices=chosen, arch=SMALL)


def tile(m: int, n: int, warps: int, stages: int = 2) -> dict[str, int]:
    return {"TILE_M": m, "TILE_N": n, "WARP_SPEC_CFG": warps, "STAGES": stages, "SPLIT_K_SLC": 1}


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are taken, however much faster separate launches are."""
    monkeypatch.setattr(Im2colChoice, "slowness", "")


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize(
    ("raw", "before", "steps"),
    [("int8", "image", "scale+bias+relu"), ("e4m3", "image", "bias"), ("e5m2", "filter", "scale")],
)
def test_types(device: Runtime, raw: str, before: str, steps: str) -> None:
    line = f"conv n=2 c=80 hw=5x6 k=40 rs=3x3 pad=1 dtype=bf16 raw={raw} prologue={steps} before={before}"
    check(device, line, SPECFILT=REGISTERS, **tile(64, 24, PING_PONG))


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize(
    "line",
    [
        "conv n=1 c=40 hw=3x6x3 k=16 rs=2x2x3 pad=1x0x2 stride=1x2x1 dil=1x1x2 mode=flipped",
        "conv n=2 c=128 hw=5x6 k=32 rs=3x3 pad=1 groups=2 layout=nchw epilogue=bias+relu",
        "conv n=2 c=24 hw=7x6 k=72 rs=1x3 pad=0x1 stride=2 dir=dgrad",
        "conv n=2 c=64 hw=5x6 k=16 rs=3x3 pad=1 exits=genstats",
    ],
)
def test_padding_is_zero_behind_the_prologue(device: Runtime, line: str) -> None:
    check(device, f"{line} dtype=bf16 prologue=scale+bias", SPECFILT=REGISTERS)


@pytest.mark.usefixtures("any_speed")
def test_parts_of_k(racing: Runtime) -> None:
    line = "conv n=1 c=72 hw=5x5 k=72 rs=1x3 pad=0x1 dtype=fp16 prologue=scale+bias before=filter epilogue=bias"
    check(racing, line, SPECFILT=REGISTERS, **tile(64, 32, PING_PONG) | {"SPLIT_K_SLC": 2})


@pytest.mark.usefixtures("any_speed")
def test_tiles_of_two_warpgroups(racing: Runtime) -> None:
    line = "conv n=1 c=64 hw=12x12 k=40 rs=2x2 pad=1 dtype=bf16 prologue=scale+bias+relu"
    check(racing, line, SPECFILT=REGISTERS, **tile(128, 32, COOPERATIVE))


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize(
    ("line", "way", "swap", "m", "n", "warps"),
    [
        ("c=72 hw=5x7 k=24 rs=2x3 pad=1", WINDOWS, 1, 64, 32, PING_PONG),
        ("c=64 hw=5x7 k=24 rs=2x3 pad=1 epilogue=bias+relu", KEPT_FILTER, 1, 64, 32, PING_PONG),
        ("c=128 hw=5x12 k=32 rs=2x3 dil=1x3 pad=0x4 stride=2x1 groups=2 raw=fp16", WINDOWS, 0, 128, 16, COOPERATIVE),
        ("c=40 hw=5x7 k=72 rs=1x3 pad=0x1 dir=dgrad", WINDOWS, 0, 64, 64, TWO_BLOCKS),
    ],
)
def test_windows_are_converted_in_place(
    racing: Runtime, line: str, way: int, swap: int, m: int, n: int, warps: int
) -> None:
    line = f"conv n=2 {line} dtype=bf16 prologue=scale+bias+relu"
    check(racing, line, SPECFILT=way, SWAP_AB=swap, **tile(m, n, warps))


def graph_of(
    scale_dims: tuple[int, ...] = (1, 64, 1, 1),
    mode: PointwiseMode = PointwiseMode.MUL,
    *,
    c: int = 64,
    data_type: DataType = DataType.BFLOAT16,
    direction: str = "fprop",
) -> OperationGraph:
    """conv(mode(x, scale), w) with 3 x 3 taps, and its data gradient with the function before w."""
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    x, w = builder.tensor((2, c, 5, 7), data_type), builder.tensor((40, c, 3, 3), data_type)
    scale = builder.tensor(scale_dims, DataType.FLOAT)
    if direction == "dgrad":
        changed = builder.pointwise(PointwiseMode.IDENTITY, w, virtual=data_type)
        dy = builder.tensor((2, 40, 5, 7), data_type)
        builder.convolution_data_gradient(dy, changed, x.dims, geometry=geometry, store=data_type)
    elif mode is PointwiseMode.RECIPROCAL:
        changed = builder.pointwise(mode, builder.pointwise(PointwiseMode.IDENTITY, x), virtual=data_type)
        builder.convolution(changed, w, geometry=geometry, store=data_type)
    else:
        builder.convolution(builder.pointwise(mode, x, scale, virtual=data_type), w, geometry=geometry, store=data_type)
    return builder.graph()


def test_what_the_prologue_reads_may_differ_between_images(device: Runtime) -> None:
    check_exact(device, ENGINE, graph_of((2, 64, 1, 1)), length=1000)


@pytest.mark.parametrize("way", [REGISTERS, WINDOWS])
def test_infinities_of_padding_and_of_channels_past_the_end_stay_out(device: Runtime, way: int) -> None:
    graph = graph_of(mode=PointwiseMode.RECIPROCAL, c=72)
    choices = {KnobType.SPECFILT: way, KnobType.SWAP_AB: 0}
    check_close(device, ENGINE, graph, length=72 * 9, choices=choices)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (graph_of((2, 64, 5, 7)), "expected one tensor of the size of convolution_forward.x"),
        (graph_of((1, 1, 5, 7)), "expected one tensor of the size of convolution_forward.x"),
        (graph_of(data_type=DataType.FLOAT), "expected operands of BFLOAT16 or HALF after the prologue, got FLOAT"),
        (graph_of(direction="dgrad"), "expected operations before dy alone, got w"),
        (parse_case("conv n=1 c=8 hw=8x8 k=8 rs=3x3 dtype=bf16").graph(), "one input with operations before it, got 0"),
        (
            parse_case("conv n=1 c=64 hw=8x8 k=64 rs=3x3 dtype=bf16 prologue=scale before=filter exits=sum").graph(),
            "expected no prologue before tensor 'w'",
        ),
        (
            parse_case("conv n=32 c=640 hw=64x64 k=640 rs=3x3 pad=1 dtype=bf16 prologue=bias+swish").graph(),
            "expected a prologue that is faster fused",
        ),
    ],
)
def test_refusals_name_the_reason(graph: OperationGraph, reason: str) -> None:
    assert reason in str(ENGINE.refuse(graph, SM_90A))


def test_other_architectures_are_refused() -> None:
    refusal = ENGINE.refuse(graph_of(), SM_80)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_ARCH_MISMATCH


def test_registers_take_rows_of_tiles_only() -> None:
    with pytest.raises(BadParamError, match="SWAP_AB: expected 0 for an operand that goes through registers, got 1"):
        ENGINE.plan(graph_of(), SM_90A, {KnobType.SPECFILT: REGISTERS, KnobType.SWAP_AB: 1})


@pytest.mark.parametrize(
    "words",
    [
        "c=64 hw=56x56 k=64 rs=3x3 pad=1 prologue=scale+bias+relu",
        "c=512 hw=7x7 k=512 rs=3x3 pad=1 raw=int8 prologue=scale before=filter",
    ],
)
def test_layers_take_it(words: str) -> None:
    images = 2 if "filter" in words else 64
    graph = parse_case(f"conv n={images} {words} dtype=bf16").graph()
    best = rank(graph, SM_90A, HeurMode.A, ENGINES).candidates[0]
    assert best.engine.name == ENGINE.name
