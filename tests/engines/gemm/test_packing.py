"""Repacked tensors: padding, groups, alignments, both orders, as dependent launches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.driver import open_driver
from lowdnn.engines.gemm.packing import Packing, packed_operand
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType
from lowdnn.ops.memory import to_memory
from lowdnn.ops.tensor import Tensor, channels_last_strides, packed_strides
from lowdnn.plan import Launch, Plan, PlanTensor, WorkspacePointer
from lowdnn.runtime.runtime import Runtime
from tests.support.runtime import download, open_runtime, upload

X = 1
TYPES = (DataType.INT8, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE)
LAYOUTS = {"channels_last": channels_last_strides, "channels_first": packed_strides}


@pytest.fixture
def raced(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        yield runtime


def tensor(data_type: DataType, dims: tuple[int, ...], strides: tuple[int, ...], alignment_bytes: int = 16) -> Tensor:
    return Tensor(X, data_type, dims, strides, max(alignment_bytes, dtypes.info(data_type).size_bytes))


def planned(packing: Packing, *, overlaps: bool = False) -> Plan:
    x, parts = packing.tensor, PlanParts()
    assert packed_operand(parts, X, packing, overlaps=overlaps) == WorkspacePointer(0)
    return Plan(
        engine="test_packing",
        engine_index=0,
        graph_key="packing",
        target_arch="sm_90a",
        choices=(),
        kernels=parts.kernels,
        launches=tuple(parts.launches),
        tensors=(PlanTensor(X, "x", x.data_type, x.span_bytes, x.alignment_bytes, is_output=False),),
        workspace_bytes=parts.workspace_bytes,
    )


def launch_of(packing: Packing, *, overlaps: bool = False) -> tuple[Launch, dict[str, int | str]]:
    """The launch and its kernel's macros."""
    plan = planned(packing, overlaps=overlaps)
    [launch] = plan.launches
    return launch, dict(plan.kernels[launch.kernel].parameters)


def check(runtime: Runtime, packing: Packing, *, overlaps: bool = False) -> None:
    """Random bits, in memory that begins and ends with the tensor, are repacked as the packing says."""
    x = packing.tensor
    storage = dtypes.info(x.data_type).storage
    bits = np.random.default_rng(3).integers(0, 256, (*x.dims, x.element_bytes), np.uint8)
    values = bits.view(storage)[..., 0]
    plan = planned(packing, overlaps=overlaps)
    skew = 0 if x.alignment_bytes >= 16 else x.alignment_bytes
    memory = to_memory(values, x).tobytes()
    source = upload(runtime, np.frombuffer(bytes(skew) + memory, np.uint8), "x")
    target = upload(runtime, np.full(plan.workspace_bytes, 0xA5, np.uint8), "packed")
    runtime.load(plan).execute({X: source.address + skew}, target.address)
    result = download(target, storage)
    for buffer in (source, target):
        buffer.close()
    count = packing.positions * packing.channels
    assert result[:count].tobytes() == expected(packing, values).tobytes()
    assert set(result[count:].tobytes()) <= {0xA5}, "bytes behind the packed tensor were written"


def expected(packing: Packing, values: NDArray[Any]) -> NDArray[Any]:
    rows = np.moveaxis(values, 1, -1).reshape(packing.positions, packing.groups, packing.group_channels)
    return np.pad(rows, ((0, 0), (0, 0), (0, packing.padded_channels - packing.group_channels)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("data_type", TYPES, ids=lambda t: t.name)
def test_element_sizes(raced: Runtime, data_type: DataType, layout: str) -> None:
    """One channel, and an odd number."""
    for dims in ((3, 1, 20), (2, 37, 5, 5)):
        check(raced, Packing(tensor(data_type, dims, LAYOUTS[layout](dims)), 1, 16))


def test_more_channels_than_a_tile_has(raced: Runtime) -> None:
    dims = (1, 150, 3, 3, 3)
    check(raced, Packing(tensor(DataType.FLOAT, dims, packed_strides(dims)), 1, 16))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("data_type", "alignment_bytes"),
    [(DataType.INT8, 1), (DataType.HALF, 2), (DataType.HALF, 4), (DataType.HALF, 8)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_alignments(raced: Runtime, data_type: DataType, alignment_bytes: int, layout: str) -> None:
    """Reads of the tensor are vectors if its rows are multiples of 16 bytes, and if rows begin in an aligned tensor."""
    dims: tuple[int, ...] = (2, 32, 4, 8)
    x = tensor(data_type, dims, LAYOUTS[layout](dims), alignment_bytes)
    check(raced, Packing(x, 1, 16))
    row = 32 + alignment_bytes // x.element_bytes
    dims = (2, row, 1, 19) if layout == "channels_last" else (1, 19, 1, row)
    check(raced, Packing(tensor(data_type, dims, LAYOUTS[layout](dims)), 1, 16))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("groups", "unit_bytes", "line_bytes"), [(8, 16, 0), (24, 16, 0), (8, 8, 0), (72, 4, 0), (1, 16, 128)], ids=str
)
def test_padding(device: Runtime, groups: int, unit_bytes: int, line_bytes: int, layout: str) -> None:
    """Channels of each group are padded, to units of less than an access, and to whole lines."""
    dims = (3, 72, 5, 7)
    check(device, Packing(tensor(DataType.HALF, dims, LAYOUTS[layout](dims)), groups, unit_bytes, line_bytes))


def test_strides_of_neither_order(device: Runtime) -> None:
    """Gaps between positions, no contiguous axis."""
    check(device, Packing(tensor(DataType.HALF, (2, 20, 3, 17), (2000, 1, 600, 24)), 1, 16))
    check(device, Packing(tensor(DataType.FLOAT, (2, 9, 17), (700, 70, 3)), 1, 16))


def test_a_dependent_launch(raced: Runtime) -> None:
    dims = (2, 37, 5, 5)
    packing = Packing(tensor(DataType.HALF, dims, channels_last_strides(dims)), 1, 16)
    launch, macros = launch_of(packing, overlaps=True)
    assert launch.overlaps_previous
    assert macros["OVERLAPS_PREVIOUS"] == 1
    check(raced, packing, overlaps=True)


def test_a_dense_image_has_one_axis_of_positions() -> None:
    dims = (32, 108, 13, 40, 40)
    large, macros = launch_of(Packing(tensor(DataType.BFLOAT16, dims, channels_last_strides(dims)), 1, 16))
    assert (macros["RANK"], macros["VECTOR"], macros["X_WIDTH"], macros["Y_WIDTH"]) == (2, 8, 4, 8)
    assert macros["UNROLL"] == 4
    assert large.work.bytes == 2 * 32 * 13 * 40 * 40 * (108 + 112)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_images_fill_the_machine(layout: str) -> None:
    dims = (8, 60, 32, 32)
    launch, _ = launch_of(Packing(tensor(DataType.BFLOAT16, dims, LAYOUTS[layout](dims)), 1, 16))
    assert launch.grid[0] >= 128
