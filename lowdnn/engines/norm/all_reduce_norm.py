"""All-reduce, residual and RMS norm in one launch on each rank (``all_reduce_norm.cu``), for tensor parallelism.

    s = sum over ranks of x + residual        y = s * weight / sqrt(average of s^2 + epsilon)

It is no operation of graphs: ``distributed.AllReduceNorm`` calls it. Each rank writes its rows to all others
("one-shot"), which suits messages of up to about a megabyte. One block has a row, and waits for the peers' rows; all
blocks are resident, in a cooperative launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.launch import ACCESS_BYTES, ceil_div, ceil_power, i64, macros, target_label
from lowdnn.enums import DataType
from lowdnn.ops.peer_stats import HEADER_WORDS, MAX_PEERS
from lowdnn.plan import KernelRef, Launch, MathUnit, Plan, PlanTensor, Scalar, ScalarType, Struct, TensorPointer, Work
from lowdnn.status import NotSupportedError, OutOfBoundError, UnsupportedDataTypeError

#: The uid of the rank's summand in plans.
X = 0
#: The uid of the residual that is read.
RESIDUAL = 1
#: The uid of the norm's weight.
WEIGHT = 2
#: The uid of the result.
Y = 3
#: The uid of the residual that is stored.
NEXT_RESIDUAL = 4
#: The uid of the rank's own buffer; those of the others follow.
FIRST_BUFFER = 5

#: Threads of a block at most.
_MOST_THREADS = 512
#: Groups of a thread at most: so many sums have room in its registers.
_MOST_ITEMS = 8
_TYPES = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16)


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of ``all_reduce_norm.cu``; field names are its macros."""

    ELEMENT: str
    PEERS: int
    THREADS: int
    VECTOR: int
    ITEMS: int


@dataclass(frozen=True)
class AllReduceNormProblem:
    """``ranks`` that exchange up to ``most_rows`` rows of ``columns`` elements at a time.

    Raises NotSupportedError and BadParamError, in the class that fits, for what the kernel does not take.
    """

    ranks: int
    most_rows: int
    columns: int
    data_type: DataType
    epsilon: float

    def __post_init__(self) -> None:
        where = "all_reduce_norm"
        if self.data_type not in _TYPES:
            names = ", ".join(one.name for one in _TYPES)
            raise UnsupportedDataTypeError.at(f"{where}.data_type", expected=f"one of {names}", got=self.data_type)
        for name, value, most in (
            ("ranks", self.ranks, MAX_PEERS),
            ("rows", self.most_rows, 2**31 - 1),
            ("columns", self.columns, 2**31 - 1),
        ):
            if not 1 <= value <= most:
                raise OutOfBoundError.at(f"{where}.{name}", expected=f"1 to {most}", got=value)
        if self._items > _MOST_ITEMS:
            most = _MOST_THREADS * _MOST_ITEMS * self._vector
            raise NotSupportedError.at(f"{where}.columns", expected=f"at most {most}", got=self.columns)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a rank's buffer behind its header: counts, flags, rows."""
        words = ceil_div(self.most_rows * (1 + 2 * self.ranks), 4) * 4
        return 4 * words + 2 * self.ranks * self.most_rows * self.columns * self._element_bytes

    def plan(self, arch: ArchSpec, rows: int) -> Plan:
        """The launch for ``rows`` rows, at most ``most_rows``."""
        if not 1 <= rows <= self.most_rows:
            raise OutOfBoundError.at("all_reduce_norm.rows", expected=f"1 to {self.most_rows}", got=rows)
        count = rows * self.columns
        numbers = (
            *i64((rows, self.columns, self.most_rows)),
            Scalar(ScalarType.F32, self.epsilon),
            Scalar(ScalarType.F32, 1 / self.columns),
        )
        uids = (X, RESIDUAL, WEIGHT, Y, NEXT_RESIDUAL, *range(FIRST_BUFFER, FIRST_BUFFER + self.ranks))
        launch = Launch(
            kernel=0,
            grid=(min(rows, arch.sm_count), 1, 1),
            block=(self._threads, 1, 1),
            arguments=(Struct((*numbers, *map(TensorPointer, uids))),),
            work=Work(
                flops=(self.ranks + 5) * count,
                bytes=(4 + 2 * self.ranks) * count * self._element_bytes,
                unit=MathUnit.FMA_F32,
            ),
            cooperative=True,
        )
        return Plan(
            engine="all_reduce_norm",
            engine_index=-1,
            graph_key=f"all_reduce_norm {self} {rows}",
            target_arch=arch.name,
            choices=(),
            kernels=(self._kernel,),
            launches=(launch,),
            tensors=tuple(self._tensor(uid, rows) for uid in uids),
        )

    @property
    def _kernel(self) -> KernelRef:
        info = dtypes.info(self.data_type)
        params = Params(info.c_type, self.ranks, self._threads, self._vector, self._items)
        form = f"p{params.PEERS}t{params.THREADS}v{params.VECTOR}i{params.ITEMS}"
        return KernelRef(
            name=f"all_reduce_norm_{info.short_name}_{form}_{target_label(BASE_TARGET)}",
            source="norm/all_reduce_norm.cu",
            target=BASE_TARGET,
            parameters=macros(params),
        )

    def _tensor(self, uid: int, rows: int) -> PlanTensor:
        if uid >= FIRST_BUFFER:
            size_bytes = 4 * HEADER_WORDS + self.buffer_bytes
            return PlanTensor(uid, f"buffers[{uid - FIRST_BUFFER}]", DataType.FLOAT, size_bytes, 16, is_output=False)
        name = ("x", "residual", "weight", "y", "next_residual")[uid]
        size_bytes = (1 if uid == WEIGHT else rows) * self.columns * self._element_bytes
        alignment_bytes = self._vector * self._element_bytes
        return PlanTensor(uid, name, self.data_type, size_bytes, alignment_bytes, is_output=uid >= Y)

    @property
    def _element_bytes(self) -> int:
        return dtypes.info(self.data_type).size_bytes

    @property
    def _vector(self) -> int:
        """Elements of an access: rows begin at a multiple of it."""
        return gcd(self.columns, ACCESS_BYTES // self._element_bytes)

    @property
    def _threads(self) -> int:
        """Threads with two groups each or, where that is not enough for a row, the most."""
        wanted = ceil_power(ceil_div(self.columns // self._vector, 2))
        return min(_MOST_THREADS, max(WARP_SIZE, wanted))

    @property
    def _items(self) -> int:
        return ceil_div(self.columns // self._vector, self._threads)
