"""Kernel references and launches over rows: name, macros, functors and arguments."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import inf

import numpy as np

from lowdnn import dtypes
from lowdnn.codegen.functor import Functor
from lowdnn.engines.launch import fma_unit, macros, target_label, target_of_form
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.tile import RowTile
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, Scalar, ScalarType, Struct, TensorValue, Work


@dataclass(frozen=True)
class RowKernel:
    """One kernel of ``source`` over a layout."""

    source: str
    data_type: DataType
    compute_type: DataType
    layout: RowLayout
    tile: RowTile
    #: Macros besides those of the tile and the layout.
    switches: tuple[tuple[str, int], ...]
    #: The functors in the order of the kernel's parameters.
    functors: tuple[Functor, ...]
    #: The parameters between the sizes and the functors'.
    scalars: tuple[Argument, ...] = ()
    #: Whether the kernel waits for the launch before it, or copies in bulk, which sm_80 cannot.
    needs_newer: bool = False
    #: Threads of a block along y, each row of which has the tile's THREADS along x.
    roles: int = 1

    @property
    def kernel(self) -> KernelRef:
        layout = self.layout
        target = target_of_form(is_newer=self.tile.CLUSTER > 1 or self.needs_newer)
        is_chunked = self.tile.chunks(layout) > 1
        text = "\n".join(functor.text for functor in self.functors)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        shape: tuple[tuple[str, int | str], ...] = (
            ("VECTOR", layout.vector),
            ("KEPT", layout.space.kept),
            ("IS_ROW", int(layout.space.is_row)),
            ("HAS_SKEW", int(bool(layout.space.skew))),
            ("NORM_GROUP", layout.space.group_rows),
            ("CHUNKED", int(is_chunked)),
            *self.switches,
            ("INDEX", layout.index),
        )
        family = self.source.rpartition("/")[2].removesuffix(".cu")
        short = dtypes.info(self.data_type).short_name
        chosen = "".join(str(value) for _, value in self.switches)
        walk = "s" if layout.space.skew else "r" if layout.space.is_row else "c"
        walk += f"{layout.space.group_rows}x" if layout.space.group_rows > 1 else ""
        walk += "k" if is_chunked else ""
        form = f"{self.tile.text}v{layout.vector}k{layout.space.kept}{walk}{chosen}"
        return KernelRef(
            name=f"{family}_{short}_{form}_{layout.index}_{target_label(target)}_{digest}",
            source=self.source,
            target=target,
            parameters=macros(self.tile) + shape,
            generated=text,
        )

    def launch(self, number: int, flops: int, moved_bytes: int, blocks: int = 0, shared_bytes: int = 0) -> Launch:
        """blocks: the grid's, if fewer than one for each group of rows.  shared_bytes: dynamic shared memory."""
        sizes = self.layout.sizes(self.tile.chunks(self.layout))
        arguments = Struct((sizes, *self.scalars, *(functor.arguments for functor in self.functors)))
        return Launch(
            kernel=number,
            grid=(blocks or self.tile.blocks(self.layout), 1, 1),
            block=(self.tile.THREADS, self.roles, 1),
            arguments=(arguments,),
            shared_bytes=shared_bytes,
            cluster=(self.tile.CLUSTER, 1, 1),
            work=Work(flops=flops, bytes=moved_bytes, unit=fma_unit(self.compute_type)),
            cooperative=self.tile.is_cooperative,
        )


def number(value: float, compute_type: DataType) -> Scalar:
    """``value`` as an argument of the arithmetic's type."""
    return Scalar(ScalarType.F64 if compute_type is DataType.DOUBLE else ScalarType.F32, value)


def share(count: int, compute_type: DataType) -> Scalar:
    """1 / count; infinity for a count of 0, so that an average of no elements is 0 * infinity = NaN."""
    return number(1 / count if count else inf, compute_type)


def scalar_argument(tensor: Tensor, compute_type: DataType) -> Argument:
    """The value of a by-value or constant tensor, in the arithmetic's type."""
    if tensor.constant_value is not None:
        return number(dtypes.rounded(np.asarray(tensor.constant_value), tensor.data_type).item(), compute_type)
    return TensorValue(tensor.uid, ScalarType.F64 if compute_type is DataType.DOUBLE else ScalarType.F32)
