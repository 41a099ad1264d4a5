"""An operand that is a pointwise function of a tensor in memory.

Host side of ``include/tile/register_operand.cuh`` and ``conv/wgmma/converted_pixels.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, strides_over
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.launch import bytes_of, i32, macros
from lowdnn.engines.model.clock import moving_s
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct
from lowdnn.tensor_map import TensorMapDataType

#: Elements of k in a stage; converted elements have two bytes.
STAGE_K = STAGE_ROW_BYTES // 2
#: Types in memory, and the data types of their tensor maps.
RAW_TYPES: Mapping[DataType, TensorMapDataType] = {
    DataType.HALF: TensorMapDataType.FLOAT16,
    DataType.BFLOAT16: TensorMapDataType.BFLOAT16,
    DataType.INT8: TensorMapDataType.UINT8,
    DataType.UINT8: TensorMapDataType.UINT8,
    DataType.FP8_E4M3: TensorMapDataType.UINT8,
    DataType.FP8_E5M2: TensorMapDataType.UINT8,
}
#: Modes that take one or two instructions for an element.
_PLAIN_MODES = frozenset(
    {
        PointwiseMode.ADD,
        PointwiseMode.SUB,
        PointwiseMode.MUL,
        PointwiseMode.ADD_SQUARE,
        PointwiseMode.MIN,
        PointwiseMode.MAX,
        PointwiseMode.ABS,
        PointwiseMode.NEG,
        PointwiseMode.CEIL,
        PointwiseMode.FLOOR,
        PointwiseMode.IDENTITY,
        PointwiseMode.RELU_FWD,
        PointwiseMode.RELU_BWD,
        PointwiseMode.BINARY_SELECT,
        PointwiseMode.CMP_EQ,
        PointwiseMode.CMP_NEQ,
        PointwiseMode.CMP_GT,
        PointwiseMode.CMP_GE,
        PointwiseMode.CMP_LT,
        PointwiseMode.CMP_LE,
        PointwiseMode.LOGICAL_AND,
        PointwiseMode.LOGICAL_OR,
        PointwiseMode.LOGICAL_NOT,
    }
)


def functions_of(dag: PointwiseDag) -> int:
    """The number of operations that take more than one or two instructions for an element."""
    return sum(op.mode not in _PLAIN_MODES for op in dag.operations)


@dataclass(frozen=True)
class Params:
    """Macros of a kernel with a converted operand."""

    RAW_TYPE: str
    SHARES_LOADS: int
    HAS_TAIL: int


@dataclass(frozen=True)
class ConvertedOperand:
    """The operand ``prologue(raw)``.

    extents: extents of the functor's index space, (..., lines, elements along k).
    strides: strides over that space of the other tensors that the prologue reads, by uid.
    """

    prologue: PointwiseDag
    raw: Tensor
    extents: tuple[int, ...]
    strides: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def map_type(self) -> TensorMapDataType:
        return RAW_TYPES[self.raw.data_type]

    @property
    def row_bytes(self) -> int:
        """Bytes of a stage's row, over which its tensor map swizzles."""
        return STAGE_K * self.raw.element_bytes

    @property
    def moved_bytes(self) -> int:
        return bytes_of(self.prologue.loads)

    @property
    def converted_bytes(self) -> int:
        """Bytes of the prologue's result."""
        result = self.prologue.result
        assert result is not None
        return result.element_count * result.element_bytes

    @property
    def allows_in_place(self) -> bool:
        """Whether a stage can be converted in place, with the same loads for all images."""
        return self.raw.element_bytes == 2 and self.shares_loads

    @property
    def functions(self) -> int:
        return functions_of(self.prologue)

    @property
    def converts_late(self) -> bool:
        """Whether the conversion in registers waits for more than pairs of elements: for broadcast tensors, or single
        bytes.
        """
        return bool(self.strides) or self.raw.element_bytes == 1

    @cached_property
    def functor(self) -> Functor:
        """``Prologue``, which gets elements of memory and hands elements of the product back."""
        return generate(
            self.prologue,
            accumulator=None,
            vector_axis=len(self.extents) - 1,
            handed=(self.raw,),
            stores_result=True,
            space=IndexSpace(self.extents, dict(self.strides), origin=((),) * len(self.extents)),
            name="Prologue",
        )

    @property
    def shares_loads(self) -> bool:
        """Whether all lines have the same loads in the prologue, except their own elements."""
        return all(steps[-2] == 0 for _, steps in self.strides)

    def macros(self, *, has_tail: bool) -> tuple[tuple[str, int | str], ...]:
        """has_tail: whether k ends within a stage."""
        return macros(Params(dtypes.info(self.raw.data_type).c_type, int(self.shares_loads), int(has_tail)))

    def label(self, *, has_tail: bool) -> str:
        """The operand's part of kernel names."""
        return f"{dtypes.info(self.raw.data_type).short_name}{'s' * self.shares_loads}{'r' * has_tail}"

    @property
    def argument(self) -> Struct:
        """The kernel's ``ConvertedInput``."""
        return Struct((*i32(self.extents[-2:]), self.functor.arguments))


def raw_tensor(prologue: PointwiseDag, where: str) -> Tensor | str:
    """The one tensor of the operand's size that the prologue reads, or why there is none.  where: its name."""
    full = [tensor for tensor in prologue.loads if tensor.dims == prologue.dims and tensor.data_type in RAW_TYPES]
    if not full:
        types = ", ".join(data_type.name for data_type in RAW_TYPES)
        return f"{where}: expected a tensor of dims {list(prologue.dims)} and type {types} before it, got none"
    return full[0]


def pixel_operand(prologue: PointwiseDag, where: str, groups: int, axis: int) -> ConvertedOperand | str:
    """The operand over (groups, images or filters, channels), or the tensor that is not constant over pixels or taps.

    axis: the tensor's axis that the groups divide.
    """
    raw = raw_tensor(prologue, where)
    if isinstance(raw, str):
        return raw
    strides = {tensor.uid: strides_over(tensor, prologue.dims) for tensor in prologue.loads if tensor is not raw}
    for tensor in prologue.loads:
        if any(strides.get(tensor.uid, ())[2:]):
            return another_tensor(tensor, where)
    extents = [groups, *prologue.dims[:2]]
    extents[1 + axis] //= groups
    steps = tuple((uid, (row[axis] * extents[1 + axis], *row[:2])) for uid, row in strides.items())
    return ConvertedOperand(prologue, raw, tuple(extents), steps)


def another_tensor(tensor: Tensor, where: str) -> str:
    """Why the prologue cannot be fused: it reads ``tensor`` as well."""
    return f"{tensor.label}.dims: expected one tensor of the size of {where} before it, got another one"


def fusion_problem(operand: ConvertedOperand, fused_s: float, unfused_s: float, arch: ArchSpec) -> str:
    """Why the product is faster after a launch that writes the prologue's result; empty if it is not.

    fused_s, unfused_s: seconds of the product with the prologue, and of the product after that launch.
    """
    unfused_s += moving_s(arch, operand.moved_bytes + operand.converted_bytes)
    if fused_s <= unfused_s:
        return ""
    got = f"{unfused_s * 1e6:.1f} us unfused, {fused_s * 1e6:.1f} us fused"
    return f"operations: expected a prologue that is faster fused, got {got}"
