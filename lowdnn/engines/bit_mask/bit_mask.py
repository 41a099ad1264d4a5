"""``bit_mask``: converts a mask with a byte for each element into bits, or back (``bit_mask.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.base import Anchors
from lowdnn.engines.launch import MAX_GRID_X, bytes_of, ceil_div, i64, macros, target_label
from lowdnn.engines.limits import alone
from lowdnn.engines.single_operation import OneLaunch
from lowdnn.enums import NumericalNote
from lowdnn.ops.bit_mask import BitMove, PackBits, UnpackBits
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work

#: Threads of a block.
_THREADS = 256
#: Bytes of a mask, the elements of one byte of bits, that a thread reads or writes at once.
_ACCESS_BYTES = 8


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    PACKS: int
    ALIGNED: int
    THREADS: int


class BitMask(OneLaunch[BitMove]):
    """Conversions between byte masks and bits, as the module's docstring says."""

    name = "bit_mask"
    index = 45
    numerical_notes: tuple[NumericalNote, ...] = ()
    anchors: Anchors = (PackBits, UnpackBits)
    limits = alone(*anchors)
    expects = "one PackBits or UnpackBits"

    def limit(self, operation: BitMove, arch: ArchSpec) -> str:
        """Limits the number of blocks."""
        blocks = _blocks(operation)
        if blocks <= MAX_GRID_X:
            return ""
        return f"{operation.bits.label}.dims: expected at most {MAX_GRID_X} blocks of {_THREADS} bytes, got {blocks}"

    def kernel(self, operation: BitMove, arch: ArchSpec) -> KernelRef:
        """The kernel, which is the same on every device."""
        is_aligned = operation.mask.alignment_bytes % _ACCESS_BYTES == 0
        return _kernel_of(Params(int(isinstance(operation, PackBits)), int(is_aligned), _THREADS))

    def launch(self, operation: BitMove) -> Launch:
        """The launch, with a thread for each byte of bits."""
        tensors = (operation.mask, operation.bits)
        pointers = (TensorPointer(tensor.uid) for tensor in tensors)
        return Launch(
            kernel=0,
            grid=(_blocks(operation), 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*pointers, *i64((operation.mask.element_count,)))),),
            work=Work(bytes=bytes_of(tensors)),
        )

    def precompiled(self) -> tuple[KernelRef, ...]:
        """The kernels of both directions."""
        return tuple(_kernel_of(Params(packs, 1, _THREADS)) for packs in (0, 1))


def _blocks(operation: BitMove) -> int:
    return ceil_div(operation.bits.element_count, _THREADS)


def _kernel_of(params: Params) -> KernelRef:
    direction, access = ("unpack", "pack")[params.PACKS], ("1", "8")[params.ALIGNED]
    return KernelRef(
        name=f"bit_mask_{direction}_v{access}_{target_label(BASE_TARGET)}",
        source="bit_mask/bit_mask.cu",
        target=BASE_TARGET,
        parameters=macros(params),
    )
