"""Common parts of the tests of ``matmul_wgmma``: choices of knobs, graphs, macros."""

from __future__ import annotations

from lowdnn.engines.gemm.wgmma_menu import WARP_CONFIGS
from lowdnn.engines.matmul.matmul_wgmma import MatmulWgmma
from lowdnn.enums import DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.plan import Plan
from tests.support.builders import matmul_graph

ENGINE = MatmulWgmma()

BF16 = DataType.BFLOAT16

LAYOUTS = (Layout.ROW_MAJOR, Layout.TRANSPOSED)

TYPES = (DataType.HALF, BF16, DataType.FLOAT, DataType.FP8_E4M3, DataType.INT8)

COOPERATIVE, PING_PONG, TWO_BLOCKS, COOPERATIVE_3 = range(len(WARP_CONFIGS))


def compute_type(data_type: DataType) -> DataType:
    return DataType.INT32 if data_type is DataType.INT8 else DataType.FLOAT


def knobs(
    m: int = 64,
    n: int = 64,
    *,
    warps: int = TWO_BLOCKS,
    stages: int = 2,
    cluster: tuple[int, int] = (1, 1),
    splits: int = 1,
    sharers: int = 1,
    streams: bool = False,
    swap: bool = False,
    by_map: bool = True,
    group: int = 8,
) -> dict[KnobType, int]:
    return {
        KnobType.TILE_M: m,
        KnobType.TILE_N: n,
        KnobType.WARP_SPEC_CFG: warps,
        KnobType.STAGES: stages,
        KnobType.TILE_CGA_M: cluster[0],
        KnobType.TILE_CGA_N: cluster[1],
        KnobType.SPLIT_K_SLC: splits,
        KnobType.TILE_CGA_K: sharers,
        KnobType.STREAM_K: int(streams),
        KnobType.SWAP_AB: int(swap),
        KnobType.OUTPUT_TMA_ENABLE: int(by_map),
        KnobType.SWIZZLE: group,
    }


def macro(plan: Plan, name: str) -> int | str:
    """The macros of the product's kernel."""
    kernel = next(kernel for kernel in plan.kernels if kernel.name.startswith("matmul_wgmma"))
    return dict(kernel.parameters)[name]


def bf16_graph(m: int, n: int, k: int, epilogue: tuple[PointwiseMode, ...] = ()) -> OperationGraph:
    return matmul_graph((), m, n, k, data_type=BF16, b_layout=Layout.TRANSPOSED, epilogue=epilogue)
