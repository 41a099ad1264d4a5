"""Moves of elements, and conversions by blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.cases import pages, text
from lowdnn.cases.base import Case, check_axes
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import (
    pointwise_type,
)
from lowdnn.cases.text import key
from lowdnn.enums import (
    DataType,
    PointwiseMode,
    TensorReordering,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError


@dataclass(frozen=True)
class TransformCase(Case):
    """A move of elements.

    op: transpose (perm), slice (start, limit, step), reshape (to), concat (axis, parts), or copy between layouts and
    types; expand makes a matrix of ``dims`` of a band, and contract the reverse (axis, lower, upper, pad); load reads
    sequences of rows, a tensor of ``dims``, from pages; pack_bits makes bits of a mask of ``dims`` with a byte for each
    element, and unpack_bits the reverse.
    parts: the inputs' extents along the axis.  page: rows of a page."""

    family: ClassVar[str] = "transform"

    op: str = key(
        text.choice(
            "transpose", "slice", "reshape", "concat", "copy", "expand", "contract", "load", "pack_bits", "unpack_bits"
        )
    )
    dims: tuple[int, ...] = key(text.extents(0))
    perm: tuple[int, ...] = key(text.indices(), ())
    start: tuple[int, ...] = key(text.indices(), ())
    limit: tuple[int, ...] = key(text.indices(), ())
    step: tuple[int, ...] = key(text.indices(), ())
    to: tuple[int, ...] = key(text.extents(0), ())
    axis: int = key(text.integer(0), 0)
    parts: tuple[int, ...] = key(text.indices(), ())
    lower: int = key(text.integer(0), 0)
    upper: int = key(text.integer(0), 0)
    pad: float = key(text.number(), 0.0)
    page: int = key(text.integer(1), 1)
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(Layout(self.layout), alignment_bytes=self.align)
        store, layout = self.out or self.dtype, Layout(self.out_layout)
        if self.op in ("concat", "expand", "contract"):
            check_axes((self.axis,), len(self.dims), "transform.axis")
        if self.op == "concat":
            shapes = [(*self.dims[: self.axis], part, *self.dims[self.axis + 1 :]) for part in self.parts]
            inputs = [builder.tensor(dims, self.dtype, name=f"x{number}") for number, dims in enumerate(shapes)]
            builder.concat(inputs, self.axis, store=store, layout=layout)
            return builder.graph()
        if self.op == "expand":
            band = (*self.dims[: self.axis], self.lower + 1 + self.upper, *self.dims[self.axis + 1 :])
            x, bandwidths = builder.tensor(band, self.dtype, name="x"), (self.lower, self.upper)
            columns = self.dims[self.axis]
            builder.expand_band_matrix(x, columns, bandwidths, axis=self.axis, pad=self.pad, store=store, layout=layout)
            return builder.graph()
        if self.op == "load":
            if len(self.dims) != 4:
                rule = "batch, heads, rows and size of sequences to load"
                raise BadParamError.at("transform.dims", expected=rule, got=list(self.dims))
            container = builder.tensor(pages.container_dims(self.dims, self.page), self.dtype, name="x")
            lengths = builder.tensor((self.dims[0], 1, 1, 1), DataType.INT64, name="lengths")
            pages.load(builder, container, lengths, self.dims[2], store=store, layout=layout)
            return builder.graph()
        if self.op == "unpack_bits":
            packed = builder.tensor((-(-prod(self.dims) // 8),), DataType.UINT8, layout=Layout.ROW_MAJOR, name="x")
            builder.unpack_bits(packed, self.dims, layout=layout)
            return builder.graph()
        x = builder.tensor(self.dims, DataType.BOOLEAN if self.op == "pack_bits" else self.dtype, name="x")
        match self.op:
            case "pack_bits":
                builder.pack_bits(x)
            case "contract":
                bandwidths = (self.lower, self.upper)
                builder.contract_band_matrix(x, bandwidths, axis=self.axis, pad=self.pad, store=store, layout=layout)
            case "transpose":
                builder.transpose(x, self.perm, store=store, layout=layout)
            case "slice":
                builder.slice(x, self.start, self.limit, self.step, store=store, layout=layout)
            case "reshape":
                builder.reshape(x, self.to, store=store, layout=layout)
            case "copy":
                compute = pointwise_type(self.dtype)
                builder.pointwise(PointwiseMode.IDENTITY, x, compute_type=compute, store=store, layout=layout)
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return True

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if tensor.name == "lengths":
            return rng.integers(0, self.dims[2] + 1, tensor.dims)
        return pages.table_values(rng, tensor) if pages.is_table(tensor) else super()._values(rng, tensor, exact)


@dataclass(frozen=True)
class BlockScaleCase(Case):
    """Quantisation of x of ``dtype`` to ``out``, or dequantisation, with a scale for each block of neighbours.

    order: in which the scales lie, row by row or in tiles (F8_128x4).
    """

    family: ClassVar[str] = "block_scale"

    dims: tuple[int, ...] = key(text.extents(0))
    axis: int = key(text.integer(0))
    dir: str = key(text.choice("quantize", "dequantize"), "quantize")
    block: int = key(text.integer(1), 32)
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType = key(text.data_type(), DataType.FP8_E4M3)
    scale: DataType = key(text.data_type(), DataType.FP8_E8M0)
    order: str = key(text.choice("rows", "tiles"), "rows")
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(Layout(self.layout), alignment_bytes=self.align)
        layout = Layout(self.out_layout)
        check_axes((self.axis,), len(self.dims), "block_scale.axis")
        x = builder.tensor(self.dims, self.dtype, name="x")
        reordering = TensorReordering.F8_128x4 if self.order == "tiles" else TensorReordering.NONE
        if self.dir == "quantize":
            builder.block_scale_quantize(
                x,
                self.block,
                self.axis,
                store=self.out,
                scale_type=self.scale,
                layout=layout,
                reordering=reordering,
            )
        else:
            scale = builder.block_scales(self.dims, self.axis, self.block, self.scale, reordering)
            builder.block_scale_dequantize(x, scale, self.block, store=self.out, layout=layout)
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return True
