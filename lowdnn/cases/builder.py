"""Builds small graphs in code, for cases and tests.

builder = CaseBuilder()
a = builder.tensor((64, 32), DataType.BFLOAT16)
b = builder.tensor((32, 16), DataType.BFLOAT16)
c = builder.matmul(a, b)
builder.pointwise(PointwiseMode.RELU_FWD, c, store=DataType.BFLOAT16)
graph = builder.graph()

An operation needs no method here: a case may make it itself and hand it to ``add``.
"""

from __future__ import annotations

from lowdnn.cases.building.attention import AttentionBuilder
from lowdnn.cases.building.contractions import ContractionBuilder
from lowdnn.cases.building.moves import MoveBuilder
from lowdnn.cases.building.rows import RowBuilder
from lowdnn.enums import DataType
from lowdnn.graph.layouts import Layout
from lowdnn.ops.resample import Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import Tensor


class CaseBuilder(ContractionBuilder, RowBuilder, AttentionBuilder, MoveBuilder):
    """A ``NodeWriter`` with a method for each operation that several cases or tests make."""

    def resample(
        self,
        x: Tensor,
        geometry: Resample,
        *,
        store: DataType | None = None,
        layout: Layout | None = None,
        index_type: DataType | None = None,
        index_in_image: bool = False,
    ) -> Tensor:
        """y; where there is an ``index_type``, the places of maxima are stored in it beside y."""
        dims = geometry.output_dims(x.dims)
        y = self.output(dims, geometry.compute_type, store, layout, "y")
        index = None if index_type is None else self.tensor(dims, index_type, layout=layout, name="index")
        self._operations.append(ResampleForward(geometry, x=x, y=y, index=index, index_in_image=index_in_image))
        return y

    def resample_gradient(
        self,
        dy: Tensor,
        dims: tuple[int, ...],
        geometry: Resample,
        *,
        index: Tensor | None = None,
        x: Tensor | None = None,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """dx of ``dims``."""
        dx = self.output(dims, geometry.compute_type, store, layout, "dx")
        self._operations.append(ResampleBackward(geometry, dy=dy, dx=dx, index=index, x=x))
        return dx

    def rng(
        self,
        distribution: Rng,
        dims: tuple[int, ...],
        *,
        seed: Tensor | int = 0,
        offset: Tensor | None = None,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Random numbers; virtual ones in FLOAT where the builder has no other type for them."""
        y = self.output(dims, DataType.FLOAT, store, layout, "y")
        self._operations.append(RngOperation(distribution, y, seed, offset))
        return y
