"""The launch that adds partial gradients of scale and bias: one for each block (``norm_backward_summing.cu``) or for
each sample (``norm_backward.cu``)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.codegen.functor import generate
from lowdnn.codegen.space import IndexSpace
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    MAX_EXTENT,
    bytes_of,
    ceil_div,
    ceil_power,
    divider,
    fma_unit,
    i64,
    macros,
    target_label,
    target_of_form,
)
from lowdnn.enums import DataType
from lowdnn.graph.pattern import dag_of
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, Struct, Work, WorkspacePointer

_THREADS = 256
#: Threads of a block.
_THREADS = 256
#: Partial sums of an element from which a block has few elements side by side.
_FEW_PARTIALS = 16
#: Elements side by side in a block if each has many partial sums: a memory sector.
_NARROW = 8
#: Elements side by side in a block if each has few partial sums: a warp.
_WIDE = 32
_NAMES = ("ScaleGradient", "BiasGradient")


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of ``norm_join.cu``; field names are its macros."""

    THREADS: int
    COLUMNS: int
    GRADIENTS: int
    OVERLAPS_PREVIOUS: int
    INDEX: str


@dataclass(frozen=True)
class Join:
    """gradients: dscale, then dbias if it is wanted.  space: their axes.  count: partial sums of each element.

    offsets: the offset of each gradient's partial sums in the workspace, [count][elements of the space].
    overlaps: whether it is a dependent launch, which sm_90a has.
    """

    gradients: tuple[Tensor, ...]
    space: IndexSpace
    compute_type: DataType
    count: int
    offsets: tuple[int, ...]
    overlaps: bool

    @property
    def partial_bytes(self) -> int:
        return len(self.gradients) * self.count * self._elements * dtypes.info(self.compute_type).size_bytes

    def kernel_and_arguments(self) -> tuple[KernelRef, tuple[Argument, ...]]:
        functors = [
            generate(
                dag_of(tensor.dims, (), anchor=tensor),
                accumulator=self.compute_type,
                vector_axis=self.space.rank - 1,
                space=self.space,
                name=name,
            )
            for name, tensor in zip(_NAMES, self.gradients, strict=False)
        ]
        text = "\n".join(functor.text for functor in functors)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        index = counter_type(self._elements)
        params = Params(_THREADS, self._columns, len(self.gradients), int(self.overlaps), index)
        target = target_of_form(is_newer=self.overlaps)
        short = dtypes.info(self.gradients[0].data_type).short_name
        kernel = KernelRef(
            name=f"norm_join_{short}_w{self._columns}g{params.GRADIENTS}_{index}_{target_label(target)}_{digest}",
            source="norm/norm_join.cu",
            target=target,
            parameters=macros(params),
            generated=text,
        )
        axes = (field for extent in self.space.extents for field in divider(min(extent, MAX_EXTENT)))
        partials = tuple(WorkspacePointer(offset) for offset in self.offsets)
        sizes = i64((self._elements, self.count))
        return kernel, (Struct((*sizes, *axes, *partials, *(functor.arguments for functor in functors))),)

    def launch(self, kernel: int, arguments: tuple[Argument, ...]) -> Launch:
        return Launch(
            kernel=kernel,
            grid=(ceil_div(self._elements, self._columns), len(self.gradients), 1),
            block=(_THREADS, 1, 1),
            arguments=arguments,
            work=Work(
                flops=len(self.gradients) * self.count * self._elements,
                bytes=self.partial_bytes + bytes_of(self.gradients),
                unit=fma_unit(self.compute_type),
            ),
            overlaps_previous=self.overlaps,
        )

    @property
    def _elements(self) -> int:
        return prod(self.space.extents)

    @property
    def _columns(self) -> int:
        return min(_WIDE if self.count < _FEW_PARTIALS else _NARROW, ceil_power(self._elements))
