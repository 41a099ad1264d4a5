"""Helpers of engines for kernels and launches: macros, integer arguments, dividers, sizes, bytes moved."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET, WGMMA_TARGET
from lowdnn.engines.indices import INT32_MAX
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.enums import DataType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import MathUnit, Scalar, ScalarType

#: Bytes of a thread's widest access to memory.
ACCESS_BYTES = 16

#: The alignment of the workspace and of every part of it, in bytes.
WORKSPACE_ALIGNMENT_BYTES = 256

#: Bytes of an mbarrier in shared memory (PTX ISA, mbarrier objects).
BARRIER_BYTES = 8

#: The greatest grid extent along x.
MAX_GRID_X = INT32_MAX

#: The greatest extent that a ``Divider`` divides by.
MAX_EXTENT = INT32_MAX


def macros(params: object) -> tuple[tuple[str, int | str], ...]:
    """``KernelRef.parameters`` from a ``Params`` dataclass, whose fields have the names of the kernel's macros."""
    return tuple(vars(params).items())


def conversion_target(data_types: Iterable[DataType], arch: ArchSpec) -> str:
    """``KernelRef.target`` of a kernel that runs everywhere and converts these types: the generation's target if
    ``arch`` has instructions for that, otherwise the base target."""
    converts_fp8 = any(data_type in dtypes.FP8_TYPES for data_type in data_types)
    return arch.generation.target if converts_fp8 and arch.has_fp8_conversions else BASE_TARGET


def is_dependent(arch: ArchSpec) -> bool:
    """Whether launches may begin before their predecessor in the stream has ended (``Launch.overlaps_previous``)."""
    return arch.has_dependent_launches


def uncrowded_bytes(arch: ArchSpec, blocks: int, shared_bytes: int) -> int:
    """Bytes of shared memory that spread ``blocks`` blocks evenly over the multiprocessors.

    Blocks of a dependent launch would otherwise crowd on the multiprocessors that are free first: a kernel took 28 us
    instead of 22. With so much shared memory, a multiprocessor has room for its share only.
    """
    share = ceil_div(blocks, arch.sm_count)
    return max(shared_bytes, shared_room(arch, share + 1) + 1) if is_dependent(arch) else shared_bytes


def dependent_target(arch: ArchSpec) -> str:
    """``KernelRef.target`` of a kernel that runs everywhere, and waits for its predecessor if ``arch`` has dependent
    launches (``include/ptx/dependent_launch.cuh``)."""
    return arch.generation.target if is_dependent(arch) else BASE_TARGET


def target_of_form(*, is_newer: bool) -> str:
    """``KernelRef.target`` of a kernel that runs everywhere.

    is_newer: whether it has dependent launches, clusters or bulk copies, which not every device has.
    """
    return WGMMA_TARGET if is_newer else BASE_TARGET


def target_label(target: str) -> str:
    """A target in kernel names: ``sm90a``."""
    return target.replace("_", "")


def i32(values: Iterable[int]) -> tuple[Scalar, ...]:
    """32-bit arguments; flags become 0 and 1, since a stored plan has no booleans."""
    return tuple(_i32(int(value)) for value in values)


def i64(values: Iterable[int]) -> tuple[Scalar, ...]:
    return tuple(map(_i64, values))


@lru_cache(maxsize=4096)
def _i32(value: int) -> Scalar:
    """Cached, since most arguments of a kernel are those of earlier plans."""
    return Scalar(ScalarType.I32, value)


@lru_cache(maxsize=4096, typed=True)
def _i64(value: int) -> Scalar:
    return Scalar(ScalarType.I64, value)


@lru_cache(maxsize=4096)
def divider(divisor: int) -> tuple[Scalar, ...]:
    """The fields of a ``Divider`` (``division.cuh``): divisor, multiplier, shift. The divisor is 1 to 2^31 - 1."""
    shift = (divisor - 1).bit_length()
    multiplier = (((1 << shift) - divisor) << 32) // divisor + 1
    return tuple(Scalar(ScalarType.U32, value) for value in (divisor, multiplier, shift))


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def floor_power(value: int) -> int:
    """The greatest power of two that is not above ``value``; 1 for 0."""
    return 1 << (max(value, 1).bit_length() - 1)


def ceil_power(value: int) -> int:
    """The least power of two that is not below ``value``; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()


def aligned_bytes(size_bytes: int) -> int:
    """The bytes that ``size_bytes`` occupy in the workspace."""
    return ceil_div(size_bytes, WORKSPACE_ALIGNMENT_BYTES) * WORKSPACE_ALIGNMENT_BYTES


def bytes_touched(tensor: Tensor) -> int:
    """Bytes of the tensor's elements, each counted once even if it repeats."""
    count = 1
    for extent, stride in zip(tensor.dims, tensor.strides, strict=True):
        count *= extent if stride else min(extent, 1)
    return count * tensor.element_bytes


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' elements; a tensor counts once even if it is given twice."""
    return sum(bytes_touched(tensor) for tensor in {tensor.uid: tensor for tensor in tensors}.values())


def moved_bytes(dag: PointwiseDag) -> int:
    """Bytes that the DAG reads and writes; a tensor that is read and written, as with beta, counts twice."""
    return bytes_of(dag.loads) + bytes_of(dag.stores)


def fma_unit(data_type: DataType) -> MathUnit:
    """The unit that computes in ``data_type`` without tensor cores."""
    return MathUnit.FMA_F64 if data_type is DataType.DOUBLE else MathUnit.FMA_F32
