from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import nvrtc
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.engines.transform import misaligned
from lowdnn.engines.transform.batches import Rounds
from lowdnn.engines.transform.tiles import LANES_U
from lowdnn.engines.transform.transform import Transform
from lowdnn.enums import DataType, KnobType, PointwiseMode, ReshapeMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.concat import Concat
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from tests.support.data import poison
from tests.support.running import check_exact, run_plan
from tests.sweeps.checking import failures

ENGINE = Transform()


def sources(plan: Plan) -> list[str]:
    return [plan.kernels[launch.kernel].source.split("_")[-1] for launch in plan.launches]


@pytest.mark.parametrize("data_type", dtypes.supported(), ids=lambda t: dtypes.info(t).short_name)
def test_every_bit_of_every_type_stays(device: Runtime, data_type: DataType) -> None:
    """Payloads of NaN and bytes that are no boolean are kept, through tiles and in rows, aligned or not."""
    builder = CaseBuilder()
    x = builder.tensor((35, 18), data_type)
    tiled = builder.transpose(x, (1, 0), store=data_type)
    in_rows = builder.slice(x, (1, 3), (34, 16), store=data_type)
    graph = builder.graph()
    facts = dtypes.info(data_type)
    bits = np.random.default_rng(5).integers(0, 256, (35, 18 * facts.size_bytes), np.uint8)
    values = bits.view(facts.storage)
    plan = ENGINE.plan(graph, SM_90A, {})
    results = run_plan(device, plan, graph, {x.uid: values})
    assert sources(plan) == ["tiled.cu" if facts.size_bytes == 8 else "misaligned.cu", "rows.cu"]
    for result, expected in ((results[tiled.uid], values.T), (results[in_rows.uid], values[1:34, 3:16])):
        assert result.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_planar_columns(device: Runtime) -> None:
    """Rows have strided elements, in x and in y."""
    builder = CaseBuilder()
    x = builder.tensor((9, 7), DataType.FLOAT, strides=(21, 3))
    builder.reshape(x, (9, 7), strides=(14, 2), store=DataType.FLOAT)
    assert sources(check_exact(device, ENGINE, builder.graph())) == ["rows.cu"]


@pytest.mark.parametrize("lanes", LANES_U)
def test_tiles_of_every_form(device: Runtime, lanes: int) -> None:
    builder = CaseBuilder()
    x = builder.tensor((3, 70, 90), DataType.FLOAT)
    builder.transpose(x, (2, 0, 1), store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), choices={KnobType.THREADS_PER_ROW: lanes})


@pytest.mark.parametrize(
    ("data_type", "dims", "pitches"), [(DataType.FLOAT, (70, 66), (68, 72)), (DataType.DOUBLE, (35, 17), (17, 35))]
)
def test_tiles_that_end_amid_a_vector(
    device: Runtime, data_type: DataType, dims: tuple[int, int], pitches: tuple[int, int]
) -> None:
    """Rows begin at vectors and end within one, in x and in y, or have an odd number of 8-byte elements."""
    builder = CaseBuilder()
    x = builder.tensor(dims, data_type, strides=(pitches[0], 1))
    builder.reshape(x, dims, strides=(1, pitches[1]), store=data_type)
    assert sources(check_exact(device, ENGINE, builder.graph())) == ["tiled.cu"]


def test_the_tile_fits_narrow_tensors() -> None:
    def lanes(dims: tuple[int, int]) -> object:
        builder = CaseBuilder()
        builder.transpose(builder.tensor(dims, DataType.FLOAT), (1, 0), store=DataType.FLOAT)
        [kernel] = ENGINE.plan(builder.graph(), SM_90A, {}).kernels
        return dict(kernel.parameters)["LANES_U"]

    assert [lanes(dims) for dims in ((4096, 4096), (16, 4096), (4096, 16))] == [16, 64, 4]


@pytest.mark.parametrize("unroll", [1, 2, 4])
def test_rows_in_flight(device: Runtime, unroll: int) -> None:
    builder = CaseBuilder()
    x = builder.tensor((7, 403), DataType.BFLOAT16)
    builder.slice(x, (0, 1), (7, 402), store=DataType.BFLOAT16)
    check_exact(device, ENGINE, builder.graph(), choices={KnobType.MULTIPLY: unroll})


def chain(builder: CaseBuilder) -> None:
    """There are four moves through virtual tensors."""
    x = builder.tensor((4, 6, 10), DataType.FLOAT)
    turned = builder.transpose(x, (2, 0, 1))
    part = builder.slice(turned, (1, 0, 1), (9, 4, 6), (2, 1, 1))
    flat = builder.reshape(part, (2, 2, 2, 2, 5))
    builder.transpose(flat, (4, 0, 1, 2, 3), store=DataType.FLOAT)


def across(builder: CaseBuilder) -> None:
    """The reshape in the middle cannot be expressed by strides."""
    x = builder.tensor((4, 6), DataType.FLOAT)
    flat = builder.reshape(builder.transpose(x, (1, 0)), (24,))
    builder.slice(flat, (3,), (21,), (2,), store=DataType.BFLOAT16)


def split(builder: CaseBuilder) -> None:
    """One of three parts of a tensor comes through a stored tensor that is read again."""
    x = builder.tensor((6, 40), DataType.HALF)
    for first in (0, 16):
        builder.slice(x, (0, first), (6, first + 16), store=DataType.HALF)
    rest = builder.slice(x, (0, 32), (6, 40), store=DataType.HALF)
    builder.transpose(rest, (1, 0), store=DataType.FLOAT)


def joined_views(builder: CaseBuilder) -> None:
    """A transpose, a slice and a tensor are concatenated, in two data types."""
    x, other = builder.tensor((5, 8), DataType.FLOAT), builder.tensor((8, 2), DataType.INT32)
    turned = builder.transpose(x, (1, 0))
    part = builder.slice(x, (0, 1), (5, 8), (1, 2))
    padded = builder.transpose(builder.reshape(part, (4, 5)), (1, 0))
    assert padded.dims == (5, 4)
    builder.concat([turned, other], 1, store=DataType.FLOAT)
    builder.concat([x, padded], 1, store=DataType.BFLOAT16)


def views(builder: CaseBuilder) -> None:
    """Memory is viewed under other dims and strides, stored and on the way to a slice."""
    x = builder.tensor((4, 6), DataType.FLOAT)
    view = builder.reshape(x, (6, 4), strides=(1, 6), mode=ReshapeMode.VIEW_ONLY)
    builder.slice(view, (1, 0), (6, 3), store=DataType.FLOAT)
    builder.reshape(x, (2, 12), strides=(12, 1), mode=ReshapeMode.VIEW_ONLY, store=DataType.FLOAT)


@pytest.mark.parametrize(
    ("build", "launches"),
    [(chain, 1), (across, 2), (split, 4), (joined_views, 3), (views, 2)],
    ids=["chain", "across", "split", "join", "view"],
)
def test_virtual_tensors_are_no_copies(device: Runtime, build: Callable[[CaseBuilder], None], launches: int) -> None:
    builder = CaseBuilder()
    build(builder)
    assert len(check_exact(device, ENGINE, builder.graph()).launches) == launches


def test_each_stored_intermediate_has_its_own_workspace(device: Runtime) -> None:
    builder = CaseBuilder()
    x, y = (builder.tensor((rows, 128), DataType.FLOAT) for rows in (5, 3))
    flat = [builder.reshape(builder.transpose(t, (1, 0)), (t.element_count,)) for t in (x, y)]
    builder.concat(flat, 0, store=DataType.FLOAT)
    assert check_exact(device, ENGINE, builder.graph()).workspace_bytes == (5 + 3) * 128 * 4


def test_a_view_of_a_tensor_that_lies_otherwise_is_refused() -> None:
    builder = CaseBuilder()
    turned = builder.transpose(builder.tensor((4, 6), DataType.FLOAT), (1, 0))
    builder.reshape(turned, (24,), strides=(1,), mode=ReshapeMode.VIEW_ONLY, store=DataType.FLOAT)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "expected a tensor stored with strides [4, 1] under a view" in refusal.reason


@pytest.mark.parametrize(
    ("dims", "strides", "to", "to_strides", "launches"),
    [
        ((4, 6), (6, 1), (8, 3), (3, 1), 1),
        ((4, 6), (7, 1), (8, 3), (5, 1), 1),
        ((4, 6), (1, 4), (6, 4), (1, 6), 2),
        ((4, 6), (7, 1), (6, 4), (4, 1), 1),
        ((4, 6), (7, 1), (6, 4), (5, 1), 2),
        ((2, 1, 12), (12, 50, 1), (3, 8, 1, 1), (8, 1, 9, 9), 1),
    ],
)
def test_reshapes_copy_twice_only_where_no_strides_join_the_axes(
    device: Runtime,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    to: tuple[int, ...],
    to_strides: tuple[int, ...],
    launches: int,
) -> None:
    builder = CaseBuilder()
    x = builder.tensor(dims, DataType.FLOAT, strides=strides)
    builder.reshape(x, to, strides=to_strides, store=DataType.FLOAT)
    plan = check_exact(device, ENGINE, builder.graph())
    assert len(plan.launches) == launches
    assert (plan.workspace_bytes > 0) == (launches == 2)


@pytest.mark.parametrize(
    ("sizes", "block", "expected"),
    [
        ((12, 24, 12), 1, Rounds((1, 2, 1), 12)),
        ((7, 5), 1, Rounds((7, 5), 1)),
        ((9,), 4, Rounds((3,), 1)),
        ((6500, 13000), 100, Rounds((1, 2), 65)),
        ((6400, 6401), 100, Rounds((64, 65), 1)),
        ((1000, 3000), 100, Rounds((10, 30), 1)),
    ],
)
def test_parts_have_as_many_rounds_as_waste_few_blocks(sizes: tuple[int, ...], block: int, expected: Rounds) -> None:
    rounds = Rounds.of(sizes, block)
    assert rounds == expected
    fewest = sum(-(-size // block) for size in sizes)
    assert fewest <= rounds.blocks <= fewest * 66 / 64


def test_parts_of_a_concatenation_have_rounds(device: Runtime) -> None:
    """Blocks walk over parts in rounds: in rows, which the last rounds lack, and in tiles."""
    for line in (
        "transform op=concat dims=8200x0 axis=1 parts=8,24,16 dtype=bf16",
        "transform op=concat dims=3x0x5x5 axis=1 parts=20,40 out_layout=nhwc dtype=fp32",
    ):
        plan = check_exact(device, ENGINE, parse_case(line).graph())
        assert len(plan.launches) == 1


@pytest.mark.parametrize("to", [(6, 4), (24,)])
def test_copies_are_dependent_launches_on_sm_90a(racing: Runtime, to: tuple[int, ...]) -> None:
    """One copy reads what the one before it writes."""
    builder = CaseBuilder()
    x = builder.tensor((4, 6), DataType.FLOAT, strides=(1, 4))
    builder.reshape(builder.slice(x, (0, 0), (4, 6)), to, store=DataType.FLOAT)
    graph = builder.graph()
    plan = check_exact(racing, ENGINE, graph)
    assert all(launch.overlaps_previous for launch in plan.launches)
    assert not any(launch.overlaps_previous for launch in ENGINE.plan(graph, SM_80, {}).launches)


def test_a_part_in_place_is_neither_read_nor_written(device: Runtime) -> None:
    strides = (6, 1)
    y = Tensor(3, DataType.FLOAT, (4, 6), strides, 4)
    inputs = (Tensor(1, DataType.FLOAT, (4, 2), strides, 4), Tensor(2, DataType.FLOAT, (4, 4), (4, 1), 16))
    graph = OperationGraph([Concat(1, inputs, y, in_place_index=0)])
    values = {1: np.ones((4, 2), np.float32), 2: np.full((4, 4), 2, np.float32)}
    result = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, values)[3]
    assert (result[:, 2:] == 2).all()
    assert (result[:, :2] == poison(1, DataType.FLOAT)).all()


def test_a_type_in_between_that_would_round_is_left_to_two_launches(device: Runtime) -> None:
    builder = CaseBuilder(virtual_type=DataType.BFLOAT16)
    x = builder.tensor((20, 20), DataType.FLOAT)
    builder.slice(builder.transpose(x, (1, 0)), (0, 0), (20, 7), store=DataType.FLOAT)
    graph = builder.graph()
    refusal = ENGINE.refuse(graph, SM_90A)
    assert refusal is not None
    assert "expected FLOAT or FLOAT, what it comes from or goes to, got BFLOAT16" in refusal.reason
    assert len(check_exact(device, Composite((ENGINE,)), graph).launches) == 2


def test_moves_between_operations_that_compute(device: Runtime) -> None:
    builder = CaseBuilder()
    x = builder.tensor((2, 8, 30), DataType.HALF)
    doubled = builder.pointwise(PointwiseMode.ADD, x, x)
    turned = builder.transpose(doubled, (0, 2, 1))
    builder.pointwise(PointwiseMode.RELU_FWD, turned, store=DataType.HALF)
    check_exact(device, Composite((ENGINE, PointwiseEngine())), builder.graph())


def test_plain_conversions_are_left_to_the_pointwise_engine() -> None:
    builder = CaseBuilder()
    builder.pointwise(PointwiseMode.IDENTITY, builder.tensor((64, 64), DataType.FLOAT), store=DataType.HALF)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert refusal.reason == "operations: expected a move of elements, got conversions within rows"


def test_arithmetic_that_would_round_is_no_conversion() -> None:
    builder = CaseBuilder()
    x = builder.tensor((64, 64), DataType.DOUBLE, layout=Layout.TRANSPOSED)
    builder.pointwise(PointwiseMode.IDENTITY, x, store=DataType.DOUBLE)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "expected moves and conversions only" in refusal.reason


def test_more_elements_than_32_bits_count() -> None:
    def plan(dims: tuple[int, ...], data_type: DataType = DataType.INT8) -> Plan:
        builder = CaseBuilder()
        x = builder.tensor(dims, data_type)
        builder.slice(x, (0,) * len(dims), (*dims[:-1], dims[-1] - 1), store=data_type)
        return ENGINE.plan(builder.graph(), SM_90A, {})

    assert dict(plan((2**16, 2**15)).kernels[0].parameters)["INDEX"] == "u32"
    assert dict(plan((2**20, 2**16)).kernels[0].parameters)["INDEX"] == "i64"
    builder = CaseBuilder()
    x = builder.tensor((2**44, 2), DataType.INT8)
    builder.slice(x, (0, 0), (2**44, 1), store=DataType.INT8)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert f"expected at most {2**31 - 1} blocks" in refusal.reason


@pytest.mark.parametrize(("data_type", "accesses"), [(DataType.BFLOAT16, 8), (DataType.FLOAT, 4), (DataType.DOUBLE, 2)])
def test_whole_tiles_move_16_bytes_at_a_time(data_type: DataType, accesses: int) -> None:
    """Accesses are wide on both sides and through shared memory; the compiler may split vectors."""
    builder = CaseBuilder()
    builder.transpose(builder.tensor((256, 256), data_type), (1, 0), store=data_type)
    source = SourceTree().read(ENGINE.plan(builder.graph(), SM_90A, {}).kernels[0])
    compiled = nvrtc.compile_program(
        source.text,
        name=source.name,
        headers=dict(source.headers),
        options=source.options_for("compute_80"),
        output=nvrtc.Output.PTX,
    )
    reads = 2 * accesses  # whole squares, and the rows of one at an edge
    expected = {"ld.global.nc": reads, "st.shared": accesses, "ld.shared": accesses}
    for instruction, count in {**expected, "st.global": accesses}.items():
        assert compiled.image.count(f"{instruction}.v4.u32".encode()) == count, instruction


def test_equal_forms_share_a_kernel() -> None:
    def kernels(dims: tuple[int, int]) -> object:
        builder = CaseBuilder()
        builder.transpose(builder.tensor(dims, DataType.FLOAT), (1, 0), store=DataType.FLOAT)
        return ENGINE.plan(builder.graph(), SM_90A, {}).kernels

    assert kernels((64, 64)) == kernels((640, 1280))


@pytest.mark.parametrize(
    "line",
    [
        "transform op=concat dims=2x0x5x5 axis=1 parts=24,16 out_layout=nhwc dtype=fp32",
        "transform op=transpose dims=75x83 perm=1,0 dtype=bf16",
        "transform op=transpose dims=2x37x49 perm=0,2,1 dtype=int8",
        "transform op=transpose dims=133x131 perm=1,0 dtype=fp32",
        "transform op=concat dims=2x0x5x5 axis=1 parts=20,33 out_layout=nhwc dtype=fp32 out=bf16",
        "transform op=transpose dims=96x72 perm=1,0 dtype=fp32",
    ],
)
def test_tiles_under_the_race_detector(line: str) -> None:
    """There are whole vectors, misaligned rows, and the ends of both."""
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        assert not failures(handle, line, seed=1, engine="transform")


@pytest.mark.parametrize(
    "line",
    [
        "transform op=copy dims=2x3x17x9 dtype=bf16 out_layout=nhwc",
        "transform op=copy dims=2x3x64x18 dtype=bf16 layout=nhwc",
        "transform op=copy dims=1x4x30x20 dtype=fp32 out=bf16 out_layout=nhwc",
        "transform op=transpose dims=2x530x5 perm=0,2,1 dtype=int8",
        "transform op=transpose dims=7x200 perm=1,0 dtype=fp64",
    ],
)
def test_a_few_columns_under_the_race_detector(line: str) -> None:
    """Columns are interleaved in x or in y, in whole vectors or not, in one block for a row or in two."""
    plan = ENGINE.plan(parse_case(line).graph(), SM_90A, {})
    assert sources(plan) == ["narrow.cu"]
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        assert not failures(handle, line, seed=1, engine="transform")


@pytest.mark.parametrize("lanes", misaligned.LANES_U)
@pytest.mark.parametrize(
    "line",
    [
        "transform op=transpose dims=2x133x261 perm=0,2,1 dtype=bf16",
        "transform op=copy dims=135x67 dtype=bf16 out=fp32 out_layout=transposed",
        "transform op=copy dims=67x135 dtype=fp32 out=int8 out_layout=transposed",
        "transform op=concat dims=1x0x5x7 axis=1 parts=17,24 out_layout=nhwc dtype=int8",
    ],
)
def test_misaligned_rows(device: Runtime, line: str, lanes: int) -> None:
    """Rows are misaligned on one side or on both, in tiles of every shape."""
    plan = check_exact(device, ENGINE, parse_case(line).graph(), choices={KnobType.THREADS_PER_ROW: lanes})
    assert sources(plan) == ["misaligned.cu"]
