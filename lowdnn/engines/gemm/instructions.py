"""Instructions of the tensor cores by the data types of their operands: mma.sync and wgmma."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.plan import MathUnit
from lowdnn.tensor_map import TensorMapDataType

#: Bytes along k of one stage of the wgmma engines: a row of the 128-byte swizzle.
STAGE_ROW_BYTES = 128
#: TF32 products of a product that is as accurate as one of fp32 (``include/math/tf32_parts.cuh``).
TRUE_FP32_TERMS = 3

#: Input types of mma.sync on sm_80, and the types of their sums.
MMA_ACCUMULATORS: Mapping[DataType, DataType] = {
    DataType.HALF: DataType.FLOAT,
    DataType.BFLOAT16: DataType.FLOAT,
    DataType.FLOAT: DataType.FLOAT,
    DataType.INT8: DataType.INT32,
}
#: The math unit of each input type.
MMA_UNITS: Mapping[DataType, MathUnit] = {
    DataType.HALF: MathUnit.MMA_F16,
    DataType.BFLOAT16: MathUnit.MMA_F16,
    DataType.FLOAT: MathUnit.MMA_TF32,
    DataType.INT8: MathUnit.MMA_INT8,
}


@dataclass(frozen=True)
class WgmmaType:
    """One wgmma instruction, for the data types of its operands.

    instruction: the types D.A.B of its name.  k: the elements in its 32 bytes of k.
    unit: its math unit in the cost model.  map_type: the type of the operands' tensor maps; fp32 is rounded to TF32 by
    the copy.
    has_mn_major: whether operands may be contiguous along m or n; otherwise only along k.
    terms: TF32 products that make one product of FLOAT; ``TRUE_FP32_TERMS`` for the accuracy of fp32.
    """

    a: DataType
    b: DataType
    accumulator: DataType
    instruction: str
    unit: MathUnit
    map_type: TensorMapDataType
    terms: int = 1

    @property
    def element_bytes(self) -> int:
        return dtypes.info(self.a).size_bytes

    @property
    def k(self) -> int:
        return 32 // self.element_bytes

    @property
    def stage_k(self) -> int:
        """Elements of k in one stage."""
        return STAGE_ROW_BYTES // self.element_bytes

    @property
    def is_fp8(self) -> bool:
        """Whether the tensor cores keep fewer bits of a sum than fp32."""
        return self.unit is MathUnit.WGMMA_FP8

    @property
    def has_mn_major(self) -> bool:
        return self.element_bytes == 2

    @property
    def is_split(self) -> bool:
        """Whether operands are multiplied in parts (``include/tile/tf32x3_operands.cuh``)."""
        return self.terms > 1

    @property
    def label(self) -> str:
        """The type's part of kernel names."""
        if self.is_split:
            return "tf32x3"
        names = [dtypes.info(data_type).short_name for data_type in (self.a, self.b)]
        return names[0] if self.a is self.b else "_".join(names)

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        """The kernel's macros for ``wgmma_multiply.cuh``."""
        d, a, b = self.instruction.split(".")
        return (
            ("TYPE", dtypes.info(self.a).c_type),
            ("ACCUMULATOR", dtypes.info(self.accumulator).c_type),
            ("MN_MAJOR_TYPES", int(self.has_mn_major)),
            ("INTEGER_TYPES", int(self.accumulator is DataType.INT32)),
            ("WGMMA_K", self.k),
            ("WGMMA_D", d),
            ("WGMMA_A", a),
            ("WGMMA_B", b),
        )


def wgmma_type(a: DataType, b: DataType, terms: int = 1) -> WgmmaType | None:
    """The instruction for operands of these types, or None where there is none.  terms: see ``WgmmaType``."""
    return (WGMMA_TYPES if terms == 1 else TRUE_FP32_TYPES).get((a, b))


def _types() -> Mapping[tuple[DataType, DataType], WgmmaType]:
    same = (
        (DataType.HALF, "f32.f16.f16", MathUnit.WGMMA_F16, TensorMapDataType.FLOAT16),
        (DataType.BFLOAT16, "f32.bf16.bf16", MathUnit.WGMMA_F16, TensorMapDataType.BFLOAT16),
        (DataType.FLOAT, "f32.tf32.tf32", MathUnit.WGMMA_TF32, TensorMapDataType.TFLOAT32),
    )
    rows = [WgmmaType(t, t, DataType.FLOAT, instruction, unit, boxed) for t, instruction, unit, boxed in same]
    for a in dtypes.FP8_TYPES:
        for b in dtypes.FP8_TYPES:
            instruction = f"f32.{dtypes.info(a).c_type}.{dtypes.info(b).c_type}"
            rows.append(WgmmaType(a, b, DataType.FLOAT, instruction, MathUnit.WGMMA_FP8, TensorMapDataType.UINT8))
    int8 = DataType.INT8
    rows.append(WgmmaType(int8, int8, DataType.INT32, "s32.s8.s8", MathUnit.WGMMA_INT8, TensorMapDataType.UINT8))
    return {(row.a, row.b): row for row in rows}


#: The types of wgmma, by the data types of both operands.
WGMMA_TYPES: Mapping[tuple[DataType, DataType], WgmmaType] = _types()
#: The types of products by TF32 that are as accurate as those of fp32. Copies do not round their operands.
TRUE_FP32_TYPES: Mapping[tuple[DataType, DataType], WgmmaType] = {
    types: replace(
        WGMMA_TYPES[types], unit=MathUnit.WGMMA_TF32X3, map_type=TensorMapDataType.FLOAT32, terms=TRUE_FP32_TERMS
    )
    for types in ((DataType.FLOAT, DataType.FLOAT),)
}
