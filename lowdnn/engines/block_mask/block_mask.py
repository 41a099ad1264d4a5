"""``block_mask``: scores of attention with minus infinity in tiles that a mask leaves out, where no engine of attention
takes the whole graph (``block_mask.cu``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.access import contiguous_elements
from lowdnn.engines.base import Anchors
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    ACCESS_BYTES,
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    conversion_target,
    divider,
    i64,
    macros,
    target_label,
)
from lowdnn.engines.limits import alone
from lowdnn.engines.single_operation import OneLaunch
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work

_THREADS = 128


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    THREADS: int
    VECTOR: int
    X_WIDTH: int
    Y_WIDTH: int
    INDEX: str


class BlockMaskEngine(OneLaunch[BlockMask]):
    """See the module's docstring."""

    name = "block_mask"
    index = 37
    anchors: Anchors = (BlockMask,)
    limits = alone(*anchors)
    expects = "one BlockMask"

    def limit(self, operation: BlockMask, arch: ArchSpec) -> str:
        """Limits the number of blocks, and of groups along an axis."""
        radices = _radices(operation)
        blocks = ceil_div(prod(radices), _THREADS)
        if max(radices) <= MAX_EXTENT and blocks <= MAX_GRID_X:
            return ""
        return f"tensor.dims: expected at most {MAX_GRID_X} blocks of {_THREADS} groups of keys, got {blocks}"

    def kernel(self, operation: BlockMask, arch: ArchSpec) -> KernelRef:
        """A kernel for the types, which converts by instructions where ``arch`` has them."""
        types = [operation.x.data_type, operation.y.data_type]
        x, y = (dtypes.info(data_type) for data_type in types)
        vector = _vector(operation)
        params = Params(
            X=x.c_type,
            Y=y.c_type,
            THREADS=_THREADS,
            VECTOR=vector,
            X_WIDTH=_width(operation.x, vector),
            Y_WIDTH=_width(operation.y, vector),
            INDEX=counter_type(prod(_radices(operation))),
        )
        target = conversion_target(types, arch)
        shape = f"v{vector}x{params.X_WIDTH}y{params.Y_WIDTH}_{params.INDEX}"
        return KernelRef(
            name=f"block_mask_{x.short_name}_{y.short_name}_{shape}_{target_label(target)}",
            source="block_mask/block_mask.cu",
            target=target,
            parameters=macros(params),
        )

    def launch(self, operation: BlockMask) -> Launch:
        """A thread for each group of keys."""
        tensors, radices = (operation.x, operation.mask, operation.y), _radices(operation)
        strides = (stride for tensor in tensors for stride in tensor.strides)
        axes = (field for radix in (1, *radices[1:]) for field in divider(radix))
        pointers = (TensorPointer(tensor.uid) for tensor in tensors)
        return Launch(
            kernel=0,
            grid=(ceil_div(prod(radices), _THREADS), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*pointers, *i64((prod(radices), operation.y.dims[3], *strides)), *axes)),),
            work=Work(bytes=bytes_of(tensors)),
        )


def _vector(operation: BlockMask) -> int:
    return ACCESS_BYTES // min(operation.x.element_bytes, operation.y.element_bytes)


def _radices(operation: BlockMask) -> tuple[int, ...]:
    """Batches, heads, queries, groups of keys."""
    *outer, keys = operation.y.dims
    return (*outer, ceil_div(keys, _vector(operation)))


def _width(tensor: Tensor, vector: int) -> int:
    """Elements of an access, 0 where those of a row are not neighbours."""
    return min(vector, contiguous_elements(tensor, tensor.strides, 3)) if tensor.strides[3] == 1 else 0
