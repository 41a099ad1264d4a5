"""Operations that move or rescale elements, for the builder of cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lowdnn.enums import DataType, TensorReordering
from lowdnn.graph.layouts import Layout
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.ops import block_scale, concat
from lowdnn.ops.bit_mask import PackBits, UnpackBits, bits_of
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.concat import Concat
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.ops.ragged import RaggedLoad
from lowdnn.ops.tensor import Tensor


class MoveBuilder(NodeWriter):
    """Methods of ``CaseBuilder``."""

    def concat(
        self,
        inputs: Sequence[Tensor],
        axis: int,
        *,
        in_place_index: int | None = None,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        dims = concat.output_dims([tensor.dims for tensor in inputs], axis)
        y = self.output(dims, inputs[0].data_type, store, layout, "y")
        self._operations.append(Concat(axis, tuple(inputs), y, in_place_index))
        return y

    def pack_bits(self, mask: Tensor) -> Tensor:
        """Packs a BOOLEAN tensor into bits, a stored UINT8 tensor (ceil(elements / 8),)."""
        y = self.tensor(bits_of(mask).dims, DataType.UINT8, layout=Layout.ROW_MAJOR, name="y")
        self._operations.append(PackBits(mask, y))
        return y

    def unpack_bits(self, bits: Tensor, dims: tuple[int, ...], *, layout: Layout | None = None) -> Tensor:
        """Unpacks bits, a UINT8 tensor, into a stored BOOLEAN tensor of ``dims``."""
        y = self.tensor(dims, DataType.BOOLEAN, layout=layout, name="y")
        self._operations.append(UnpackBits(bits, y))
        return y

    def ragged_load(self, x: Tensor, offsets: Tensor, rows: int, multiplier: int = 1) -> Tensor:
        """Sequences of up to ``rows`` rows of the packed ``x``, virtual."""
        dims = (offsets.dims[0] - 1, x.dims[1], rows, x.dims[3])
        y = self.tensor(dims, x.data_type, is_virtual=True, name="y")
        self._operations.append(RaggedLoad(x, y, offsets, multiplier))
        return y

    def block_scale_quantize(
        self,
        x: Tensor,
        block_size: int,
        axis: int,
        *,
        store: DataType = DataType.FP8_E4M3,
        scale_type: DataType = DataType.FP8_E8M0,
        layout: Layout | None = None,
        reordering: TensorReordering = TensorReordering.NONE,
    ) -> tuple[Tensor, Tensor]:
        """(y, scale), both stored; ``reordering``: of the scales."""
        y = self.tensor(x.dims, store, layout=layout, name="y")
        scale = self.block_scales(x.dims, axis, block_size, scale_type, reordering)
        self._operations.append(BlockScaleQuantize(x, y, scale, DataType.FLOAT, block_size))
        return y, scale

    def block_scales(
        self,
        dims: tuple[int, ...],
        axis: int,
        block_size: int,
        data_type: DataType,
        reordering: TensorReordering = TensorReordering.NONE,
    ) -> Tensor:
        """A new tensor of scales for a tensor of ``dims``."""
        found = block_scale.scale_dims(dims, axis, block_size, reordering)
        layout = self._layout if reordering is TensorReordering.NONE else Layout.ROW_MAJOR
        return replace(self.tensor(found, data_type, layout=layout, name="scale"), reordering=reordering)

    def block_scale_dequantize(
        self,
        x: Tensor,
        scale: Tensor,
        block_size: int,
        *,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        y = self.output(x.dims, DataType.FLOAT, store, layout, "y")
        self._operations.append(BlockScaleDequantize(x, scale, y, DataType.FLOAT, block_size))
        return y

    def expand_band_matrix(
        self,
        x: Tensor,
        columns: int,
        bandwidths: tuple[int, int],
        *,
        axis: int,
        pad: float,
        store: DataType,
        layout: Layout | None = None,
    ) -> Tensor:
        """A matrix of ``columns`` along ``axis``; bandwidths: below and above the main diagonal."""
        y = self.tensor((*x.dims[:axis], columns, *x.dims[axis + 1 :]), store, layout=layout, name="y")
        self._operations.append(ExpandBandMatrix(x, y, *bandwidths, axis, pad))
        return y

    def contract_band_matrix(
        self,
        x: Tensor,
        bandwidths: tuple[int, int],
        *,
        axis: int,
        pad: float,
        store: DataType,
        layout: Layout | None = None,
    ) -> Tensor:
        y = self.tensor((*x.dims[:axis], sum(bandwidths) + 1, *x.dims[axis + 1 :]), store, layout=layout, name="y")
        self._operations.append(ContractBandMatrix(x, y, *bandwidths, axis, pad))
        return y
