"""How a wgmma engine stores its output: host side of ``include/epilogue/wgmma_output.cuh``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lowdnn import dtypes
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.gemm.epilogue_reductions import NO_REDUCTIONS, EpilogueReductions, ReductionSlices
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, full_loads
from lowdnn.engines.gemm.wgmma_product import MAX_ACCUMULATORS, MAX_COMPUTED_ACCUMULATORS, MAX_PLAIN_ACCUMULATORS
from lowdnn.engines.gemm.wgmma_tiles import TileStore, WgmmaTile
from lowdnn.engines.launch import ceil_div, i32, i64
from lowdnn.enums import DataType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct, TensorMap, TensorPointer, WorkspacePointer
from lowdnn.tensor_map import (
    ADDRESS_UNIT_BYTES,
    Im2colMap,
    TensorMapDataType,
    TensorMapSwizzle,
    TiledMap,
    tensor_map_problem,
)

_MAP_TYPES = {1: TensorMapDataType.UINT8, 2: TensorMapDataType.UINT16, 4: TensorMapDataType.UINT32}
_SWIZZLES = {
    128: TensorMapSwizzle.BYTES_128,
    64: TensorMapSwizzle.BYTES_64,
    32: TensorMapSwizzle.BYTES_32,
    16: TensorMapSwizzle.NONE,
}
#: A divisor of a tile's columns with which every type can be stored by tensor map.
MAP_COLUMNS = 16
#: Rows that a warp stores at once.
_STORE_ROWS = 16
#: Warps of a warpgroup.
_WARPS = 4


@dataclass(frozen=True)
class OutputStore:
    """The epilogue of a product that is not split.

    store: not SLICE.  functor: it stores itself, or hands ``stored`` back.  vector: elements of a functor call.
    stored: the tensor that is stored by tensor map; None if the functor stores.  reductions: its reductions.
    operand: a tensor of the output's size that is loaded by tensor map, ``operand_buffers`` chunks ahead of its use.
    """

    store: TileStore
    functor: Functor
    vector: int
    output: OutputSpace
    rows: int
    stored: Tensor | None = None
    reductions: EpilogueReductions = NO_REDUCTIONS
    operand: Tensor | None = None
    operand_buffers: int = 0

    @classmethod
    def of(
        cls,
        dag: PointwiseDag,
        output: OutputSpace,
        accumulator: DataType,
        rows: int,
        *,
        tile_columns: int = MAP_COLUMNS,
        by_map: bool = True,
        reductions: EpilogueReductions = NO_REDUCTIONS,
        operand_buffers: int = 0,
    ) -> OutputStore:
        """The store by tensor map, if ``by_map`` allows it and it pays; otherwise the functor's store.

        It pays if the epilogue reads no tensor of the output's size, or one that is loaded by tensor map too; the
        functor reads others in wider accesses. With ``reductions`` it always pays.

        rows: rows of one batch, the product's m; the output's rows are those of all batches.
        tile_columns: columns of a tile; if they are no multiple of 16, single bytes are not stored by tensor map.
        operand_buffers: chunks in flight, as the tile has them.
        """
        vector_axis = output.space.rank - 1
        operand = mapped_operand(dag, output, rows, tile_columns) if operand_buffers else None
        pays = reductions.exist or operand is not None or not full_loads(dag, output)
        fits = not (stored_reduction_problem(reductions, dag) or map_problem(dag, output, rows, tile_columns))
        if by_map and pays and fits:
            functor = handing_back(dag, output, accumulator, reductions, operand)
            buffers = 0 if operand is None else operand_buffers
            return cls(TileStore.MAP, functor, 2, output, rows, dag.stores[0], reductions, operand, buffers)
        functor = generate(
            replace(dag, result=None),
            accumulator=accumulator,
            vector_axis=vector_axis,
            reduced=reductions.reduced,
            space=output.space,
        )
        return cls(TileStore.FUNCTOR, functor, output.vector(functor), output, rows, reductions=reductions)

    @classmethod
    def of_pixels(
        cls, dag: PointwiseDag, output: OutputSpace, accumulator: DataType, rows: int, reductions: EpilogueReductions
    ) -> OutputStore:
        """The store by im2col maps of parts of the output, which the caller makes; all parts share one functor text."""
        functor = handing_back(dag, output, accumulator, reductions)
        return cls(TileStore.PIXELS, functor, 2, output, rows, dag.stores[0], reductions)

    @property
    def label(self) -> str:
        """The store's part of kernel names."""
        operand = f"_ahead{self.operand_buffers}" if self.operand is not None else ""
        return f"{self.store.name.lower()}{operand}{self.reductions.label}"

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        """The macros of ``wgmma_output.cuh`` for a kernel that is not split."""
        stored = _macros(self.store, self.output, self.vector, self.stored, self.operand, self.operand_buffers)
        return (*stored, *self.reductions.macros)

    def reduction_slices(self, tile: WgmmaTile, grid: int, *, is_transposed: bool) -> ReductionSlices:
        """The totals that ``grid`` blocks leave: ``epilogue_reductions.cuh``, ``staged_reductions.cuh``."""
        workers, batches, columns = grid * tile.consumers, self.output.rows // self.rows, self.output.columns
        whole = workers * _WARPS
        if is_transposed:
            return ReductionSlices(batches * ceil_div(self.rows, tile.n), ceil_div(columns, _STORE_ROWS), whole)
        down = batches * ceil_div(self.rows, _STORE_ROWS) if self.store is TileStore.FUNCTOR else workers
        return ReductionSlices(down, ceil_div(columns, tile.n), whole)

    def maps(self, tile: WgmmaTile) -> tuple[TensorMap, ...]:
        """Maps of the output and the operand, (column, row, batch) in chunks of a tile's row, for MAP."""
        if self.stored is None:
            return ()
        # Without an operand, the operand's map is not read.
        tensors = (self.stored, self.operand or self.stored)
        columns = _chunk_columns(tile.stored_columns, max(tensor.element_bytes for tensor in tensors))
        return tuple(
            TensorMap(TensorPointer(tensor.uid), _layout(tensor, self.output, self.rows, columns)) for tensor in tensors
        )

    def argument(self, tile: WgmmaTile, totals: tuple[WorkspacePointer, ...] = ()) -> Struct:
        """The kernel's ``Epilogue::Output``.  totals: pointers to the totals of the reductions."""
        extents = i32((self.rows, self.output.columns))
        reductions = self.reductions.arguments(totals)
        return Struct((*reductions, *self.maps(tile), *extents, self.output.map, self.functor.arguments))


def most_accumulators(
    dag: PointwiseDag, output: OutputSpace, reductions: EpilogueReductions, *, has_operand: bool
) -> int:
    """The most accumulators of a thread without spills in the epilogue.  has_operand: it loads one by tensor map."""
    if full_loads(dag, output) and not has_operand:
        return MAX_ACCUMULATORS
    is_plain = not (dag.loads or dag.operations or reductions.exist)
    return MAX_PLAIN_ACCUMULATORS if is_plain else MAX_COMPUTED_ACCUMULATORS


def reductions_go_by_map(reductions: EpilogueReductions, dag: PointwiseDag, output: OutputSpace, rows: int) -> bool:
    """Whether there are reductions with which tiles of a multiple of MAP_COLUMNS columns are stored by tensor map.

    rows: as for ``OutputStore.of``.
    """
    return reductions.exist and not (
        stored_reduction_problem(reductions, dag) or map_problem(dag, output, rows, MAP_COLUMNS)
    )


def stored_reduction_problem(reductions: EpilogueReductions, dag: PointwiseDag) -> str:
    """Why columns of the stored tensor cannot be reduced in a store by tensor map; empty if they can."""
    reduced = reductions.column and reductions.column.operation.x
    if not reduced or [tensor.uid for tensor in dag.stores] == [reduced.uid]:
        return ""
    return f"expected the tensor that is stored, and no other, got {reduced.label}"


def handing_back(
    dag: PointwiseDag,
    output: OutputSpace,
    accumulator: DataType,
    reductions: EpilogueReductions = NO_REDUCTIONS,
    operand: Tensor | None = None,
) -> Functor:
    """The functor that hands the DAG's one stored tensor back instead of storing it, and values that ``reductions``
    need.

    operand: the loaded tensor that the kernel hands in, or None.
    """
    return generate(
        replace(dag, stores=(), result=dag.stores[0]),
        accumulator=accumulator,
        vector_axis=output.space.rank - 1,
        handed=() if operand is None else (operand,),
        stores_result=True,
        reduced=reductions.reduced if reductions.row or reductions.whole else None,
        space=output.space,
    )


def slice_macros(output: OutputSpace) -> tuple[tuple[str, int | str], ...]:
    """The macros of ``wgmma_output.cuh`` for a split kernel."""
    return _macros(TileStore.SLICE, output, 1)


def slice_argument(rows: int, slices: Slices, offset_bytes: int) -> Struct:
    """``Epilogue::Output`` of a split kernel with its slices at ``offset_bytes``.  rows: rows of one batch."""
    strides = i64((slices.pitch, slices.slice_elements))
    return Struct((*i32((rows, slices.columns)), WorkspacePointer(offset_bytes), *strides))


def _macros(
    store: TileStore,
    output: OutputSpace,
    vector: int,
    stored: Tensor | None = None,
    operand: Tensor | None = None,
    operand_buffers: int = 0,
) -> tuple[tuple[str, int | str], ...]:
    return (
        ("STORE", int(store)),
        ("OUTPUT_RANK", output.space.rank),
        ("ROW_AXES", output.row_axes),
        ("VECTOR", vector),
        ("OUTPUT_TYPE", "void" if stored is None else dtypes.info(stored.data_type).c_type),
        ("OPERAND_BUFFERS", operand_buffers),
        ("OPERAND_TYPE", "u8" if operand is None else dtypes.info(operand.data_type).c_type),
    )


def mapped_operand(dag: PointwiseDag, output: OutputSpace, rows: int, tile_columns: int = MAP_COLUMNS) -> Tensor | None:
    """The tensor of the output's size that is loaded by tensor map, if there is one and the output is stored by map."""
    full = full_loads(dag, output)
    if len(full) != 1 or map_problem(dag, output, rows, tile_columns):
        return None
    operand, stored = full[0], dag.stores[0]
    chunk = _chunk_columns(tile_columns, max(operand.element_bytes, stored.element_bytes))
    is_mapped = not any(_tensor_problem(tensor, output, rows, chunk) for tensor in (operand, stored))
    return operand if is_mapped else None


def map_problem(dag: PointwiseDag, output: OutputSpace, rows: int, tile_columns: int) -> str:
    """Why the output cannot be stored by tensor map; empty if it can: one stored tensor, in rows of columns."""
    if len(dag.stores) != 1:
        return f"expected one stored tensor, got {len(dag.stores)}"
    stored = dag.stores[0]
    return _tensor_problem(stored, output, rows, _chunk_columns(tile_columns, stored.element_bytes))


def _tensor_problem(tensor: Tensor, output: OutputSpace, rows: int, columns: int) -> str:
    """Why no tensor map describes a tensor of the output's size in chunks of ``columns``; empty if one does."""
    if problem := _columns_problem(tensor, output, columns):
        return problem
    if output.row_extents not in ((output.rows // rows, rows), (output.rows,)):
        return f"{tensor.label}.strides: expected batches and rows, got {list(tensor.strides)}"
    return tensor_map_problem(_layout(tensor, output, rows, columns))


def _columns_problem(tensor: Tensor, output: OutputSpace, columns: int) -> str:
    """Why neither kind of tensor map describes chunks of ``columns``; empty if one does."""
    if tensor.element_bytes not in _MAP_TYPES:
        return f"{tensor.label}.data_type: expected at most 4 bytes, got {tensor.data_type.name}"
    if output.space.rank - output.row_axes > 1 or output.space.strides[tensor.uid][-1] != 1:
        return f"{tensor.label}.strides: expected contiguous columns, got {list(tensor.strides)}"
    if output.columns % 2:
        return f"{tensor.label}.dims: expected an even number of columns, got {output.columns}"
    if tensor.alignment_bytes % ADDRESS_UNIT_BYTES:
        return (
            f"{tensor.label}.alignment_bytes: expected a multiple of {ADDRESS_UNIT_BYTES}, got {tensor.alignment_bytes}"
        )
    if columns * tensor.element_bytes % ADDRESS_UNIT_BYTES:
        return f"tile_columns: expected {ADDRESS_UNIT_BYTES} bytes or multiples, got {columns} {tensor.data_type.name}"
    return ""


def pixels_problem(
    dag: PointwiseDag, output: OutputSpace, parts: Iterable[tuple[OutputSpace, Mapping[int, int]]], tile_columns: int
) -> str:
    """Why ``parts`` of the output cannot be stored by im2col maps; empty if they can.

    Each part comes with the offset in elements of its first element in each tensor, by uid.
    """
    if len(dag.stores) != 1:
        return f"expected one stored tensor, got {len(dag.stores)}"
    stored = dag.stores[0]
    if problem := _columns_problem(stored, output, _chunk_columns(tile_columns, stored.element_bytes)):
        return problem
    for part, firsts in parts:
        if problem := tensor_map_problem(pixel_layout(stored, part, tile_columns)):
            return problem
        if first_bytes := firsts[stored.uid] * stored.element_bytes % ADDRESS_UNIT_BYTES:
            return (
                f"expected residues of pixels at multiples of {ADDRESS_UNIT_BYTES} bytes, got {first_bytes} beyond one"
            )
    return ""


def _chunk_columns(tile_columns: int, element_bytes: int) -> int:
    """Columns of a chunk, as in ``include/epilogue/map_epilogue.cuh``, for the widest tensor that it moves."""
    columns = max(_SWIZZLES) // element_bytes
    while tile_columns % columns:
        columns //= 2
    return columns


def _layout(tensor: Tensor, output: OutputSpace, rows: int, columns: int) -> TiledMap:
    """The tensor map with boxes of ``columns``."""
    size = tensor.element_bytes
    batches = output.rows // rows
    steps = output.space.strides[tensor.uid][: output.row_axes]
    row_stride = steps[-1] if rows > 1 else 0
    batch_stride = steps[0] if batches > 1 else 0
    return TiledMap(
        _MAP_TYPES[size],
        address=0,
        dims=(output.columns, rows, batches),
        strides_bytes=(row_stride * size, batch_stride * size),
        box=(columns, _STORE_ROWS, 1),
        element_strides=(1, 1, 1),
        swizzle=_SWIZZLES[columns * size],
    )


def pixel_layout(stored: Tensor, part: OutputSpace, tile_columns: int) -> Im2colMap:
    """The map of a part of the output whose row axes are (images, spatial axes outermost first), for PIXELS."""
    size = stored.element_bytes
    columns = _chunk_columns(tile_columns, size)
    images, *pixels = zip(part.row_extents, part.space.strides[stored.uid][: part.row_axes], strict=True)
    axes = (*reversed(pixels), images)
    corners = (0,) * len(pixels)
    return Im2colMap(
        _MAP_TYPES[size],
        address=0,
        dims=(part.columns, *(extent for extent, _ in axes)),
        strides_bytes=tuple(stride * size if extent > 1 else ADDRESS_UNIT_BYTES for extent, stride in axes),
        lower_corner=corners,
        upper_corner=corners,
        channels_per_pixel=columns,
        pixels_per_column=_STORE_ROWS,
        element_strides=(1,) * (1 + len(axes)),
        swizzle=_SWIZZLES[columns * size],
    )
