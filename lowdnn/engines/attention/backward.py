"""Gradients of attention as all their kernels read them, with mma.sync or wgmma (``attention_backward.cuh``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.attention.filled_band import filled_band
from lowdnn.engines.attention.fp8_backward import Fp8Operands
from lowdnn.engines.attention.heads import (
    MAX_LENGTH,
    MAX_SIZE,
    TYPES,
    Heads,
    kernel_bounds,
    offsets_argument,
    refuse_heads,
    seen_share,
)
from lowdnn.engines.base import Refusal
from lowdnn.engines.launch import (
    MAX_EXTENT,
    MAX_GRID_X,
    aligned_bytes,
    bytes_of,
    ceil_div,
    ceil_power,
    divider,
    i32,
    i64,
    macros,
)
from lowdnn.engines.limits import names_of
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of, refuse_index_space
from lowdnn.graph.ragged_pattern import padded
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.ragged import RaggedMove
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_centred_backward import SdpaCentredBackward
from lowdnn.ops.sdpa_fp8_backward import SdpaFp8Backward
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    MathUnit,
    Scalar,
    ScalarType,
    Struct,
    TensorPointer,
    TensorValue,
    Work,
    WorkspacePointer,
)
from lowdnn.status import Status

#: Bytes of a query's Term.
TERM_BYTES = 8

_OUTPUT_TYPES = (*TYPES, DataType.FLOAT)
#: Elements that a lane of the terms' kernel reads at a time.
_PIECE = 8
#: Warps of the terms' kernel.
_TERMS_WARPS = 4
#: Queries or keys of a block, at the least.
_FEWEST_ROWS = 32
#: Ports of tensors of heads.
_HEADS = ("q", "k", "v", "o", "d_o", "dq", "dk", "dv")
_NULL = Scalar(ScalarType.I64, 0)


@dataclass(frozen=True)
class TermsParams:
    """Macros of ``attention_backward_terms.cu``."""

    TYPE: str
    GRADIENT_TYPE: str
    IS_FP8: int
    LANES: int
    WARPS: int
    HAS_RAGGED: int
    IS_GROUPED: int
    CENTRE_SCALES: int


@dataclass(frozen=True)
class ClearedWords:
    """Words in the workspace that the terms' kernel sets to 0."""

    offset_bytes: int
    count: int


@dataclass(frozen=True)
class AttentionBackward:
    """The operation as the kernels read it.  ragged: the loads and stores of packed tensors, by uid; tensors with those
    uids are as if they were padded.  term_tile: queries of a tile; a head has terms of whole tiles."""

    operation: SdpaBackward
    ragged: Mapping[int, RaggedMove] = field(default_factory=dict)
    term_tile: int = 1

    @staticmethod
    def match(engine: str, graph: OperationGraph) -> AttentionBackward | Refusal:
        """Refuses data types without a tensor core instruction, sizes of heads, strides and alignments that copies of
        16 bytes do not reach, more than the kernels can count."""
        found = graph.derive(padded)
        if isinstance(found, str):
            return Refusal(engine, found)
        operations = found.graph.operations
        if len(operations) != 1 or not isinstance(operation := operations[0], SdpaBackward):
            got = names_of(graph.operations)
            return Refusal(engine, f"operations: expected one SdpaBackward, got {got}")
        if refused := _refuse_types(operation):
            return Refusal(engine, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := _refuse_shape(operation) or _refuse_inner(operation):
            return Refusal(engine, refused, Status.NOT_SUPPORTED_SHAPE)
        problem = AttentionBackward(operation, found.moves)
        if refused := problem.refuse_ragged() or (problem.fp8.refuse() if problem.fp8 else ""):
            return Refusal(engine, refused, Status.NOT_SUPPORTED_LAYOUT)
        for heads in problem.heads.values():
            if refused := refuse_heads(heads):
                return Refusal(engine, refused, Status.NOT_SUPPORTED_LAYOUT)
        return problem

    def refuse_ragged(self) -> str:
        """Why the kernels do not read or store what is ragged, or an empty string."""
        if self.fp8 is not None and self.ragged:
            label = next(iter(self.ragged.values())).packed.label
            return f"{label}: expected heads with strides, got a ragged tensor beside fp8"
        packed = {getattr(self.operation, port).uid for port in (*_HEADS, "stats")}
        if self.operation.inner is not None:  # the kernel reads its operands by strides
            packed -= {tensor.uid for tensor in self.operation.inner.operands}
        for uid, move in self.ragged.items():
            if uid not in packed:
                expected = "ragged offsets of heads and statistics alone, which nothing inside reads"
                return f"{move.packed.label}: expected {expected}, got others"
        return ""

    @cached_property
    def heads(self) -> dict[str, Heads]:
        """All tensors of heads, by port."""
        return {port: self._rows(getattr(self.operation, port)) for port in _HEADS}

    @cached_property
    def fp8(self) -> Fp8Operands | None:
        """The operands of fp8, copies of which lie behind the terms in the workspace."""
        if not isinstance(self.operation, SdpaFp8Backward):
            return None
        return Fp8Operands(self.operation, self.heads, self._terms_bytes)

    @property
    def centre_scales(self) -> tuple[Tensor, ...]:
        """The factors of the sums of d_o * o."""
        return self.operation.centre_scales if isinstance(self.operation, SdpaCentredBackward) else ()

    @property
    def operands(self) -> Mapping[str, Heads]:
        """The operands of products, by port."""
        return self.heads if self.fp8 is None else self.fp8.wide

    @property
    def workspace_bytes(self) -> int:
        """Bytes of terms and operands, from the beginning of the workspace on."""
        return self._terms_bytes if self.fp8 is None else self.fp8.end_byte

    @property
    def term_rows(self) -> int:
        """Rows of terms of a head."""
        return ceil_div(self.queries, self.term_tile) * self.term_tile

    @property
    def has_groups(self) -> bool:
        """Whether terms are in groups, which whole tiles are made of."""
        return self.term_tile > 1

    @property
    def _terms_bytes(self) -> int:
        return aligned_bytes(self.all_heads * self.term_rows * TERM_BYTES)

    def rows_argument(self, heads: Heads) -> Struct:
        """The kernels' ``Rows``."""
        if not self.ragged or heads.ragged is not None:
            return heads.argument
        return Struct((heads.argument, offsets_argument(None)))

    def _rows(self, tensor: Tensor) -> Heads:
        heads = Heads.of(tensor, self.operation.q.dims[1], row_axis=2)
        return replace(heads, ragged=self.ragged.get(tensor.uid))

    @property
    def is_plain(self) -> bool:
        """Whether scores are scaled products, weights are as they are, dq, dk, dv are all that is wanted, and nothing
        is packed."""
        return self.operation.inner is None and self.operation.dbias is None and not self.ragged

    def functors(self, vector_axis: int) -> dict[str, Functor]:
        """The functors of ``attention_backward_mma.cuh`` that there are, by name, for neighbours along that axis."""
        inner = self.operation.inner
        if inner is None:
            return {}
        found = {}
        for name, place in (("Scores", 0), ("Gradient", 1), ("Factors", 2)):
            given, made = inner.given[place], inner.made[place]
            if given.uid == made.uid:
                continue
            dag = _dag(inner, given, made, self.operation.scores_dims)
            handed = (inner.given[0],) if name == "Gradient" else ()
            if handed:
                others = (tensor for tensor in dag.loads if tensor.uid != handed[0].uid)
                dag = replace(dag, loads=(*handed, *others))
            found[name] = generate(
                dag,
                accumulator=DataType.FLOAT,
                vector_axis=vector_axis,
                handed=handed,
                result=DataType.FLOAT,
                name=name,
            )
        return found

    @property
    def all_heads(self) -> int:
        """Heads of q of all batches."""
        return self.operation.q.dims[0] * self.operation.q.dims[1]

    @property
    def queries(self) -> int:
        return self.operation.q.dims[2]

    @property
    def keys(self) -> int:
        return self.operation.k.dims[2]

    @property
    def size_qk(self) -> int:
        return self.operation.q.dims[3]

    @property
    def size_v(self) -> int:
        return self.operation.v.dims[3]

    @property
    def size(self) -> int:
        """The size of the larger heads."""
        return max(self.size_qk, self.size_v)

    @property
    def data_type(self) -> DataType:
        """The type of what is multiplied."""
        return self.operation.q.data_type if self.fp8 is None else DataType.HALF

    @property
    def c_type(self) -> str:
        """The type of the operands, in the kernels."""
        return dtypes.info(self.data_type).c_type

    def c_type_of(self, port: str) -> str:
        """The type of a gradient, in the kernels."""
        return dtypes.info(getattr(self.operation, port).data_type).c_type

    @property
    def rounded_types(self) -> tuple[str, str]:
        """The types that the kernels round weights and gradients of scores to."""
        weight, gradient = (dtypes.info(tensor.data_type).c_type for tensor in (self.operation.q, self.operation.d_o))
        return weight, gradient

    def types_name(self, port: str) -> str:
        """The types of operands and of a gradient, in the names of kernels."""
        of_fp8 = () if self.fp8 is None else (self.operation.d_o,)
        return _types_name(self.operation.q, *of_fp8, getattr(self.operation, port))

    @property
    def rows_name(self) -> str:
        """The mark in names of kernels, where rows are packed."""
        return "_ragged" if self.ragged else ""

    def prepare(self, cleared: ClearedWords | None = None) -> list[tuple[KernelRef, Launch]]:
        """The launches before the products: terms, at the beginning of the workspace, and behind them widened operands.

        cleared: at most as many as rows of terms."""
        terms = self._terms(cleared)
        return [terms] if self.fp8 is None else [self.fp8.widen(), terms]

    def _terms(self, cleared: ClearedWords | None) -> tuple[KernelRef, Launch]:
        operation = self.operation
        o, d_o = (dtypes.info(tensor.data_type) for tensor in (operation.o, operation.d_o))
        lanes = min(WARP_SIZE, ceil_power(ceil_div(self.size_v, _PIECE)))
        kernel = KernelRef(
            name=f"attention_backward_terms_{_types_name(operation.o, operation.d_o)}_{lanes}{self.rows_name}"
            f"{'_grouped' * self.has_groups}{f'_centre{len(self.centre_scales)}' * bool(self.centre_scales)}_sm80",
            source="attention/attention_backward_terms.cu",
            target=BASE_TARGET,
            parameters=macros(
                TermsParams(
                    o.c_type,
                    d_o.c_type,
                    int(self.fp8 is not None),
                    lanes,
                    _TERMS_WARPS,
                    int(bool(self.ragged)),
                    int(self.has_groups),
                    len(self.centre_scales),
                )
            ),
        )
        heads, count = operation.q.dims[1], self.term_rows * self.all_heads
        words: Argument = _NULL if cleared is None else WorkspacePointer(cleared.offset_bytes)
        arguments = Struct(
            (
                *(
                    self.rows_argument(rows)
                    for rows in (self.heads["o"], self.heads["d_o"], self._rows(operation.stats))
                ),
                _lengths(operation.seq_len_q),
                WorkspacePointer(),
                words,
                *i32((count, 0 if cleared is None else cleared.count, self.size_v, self.queries)),
                Struct(divider(max(1, self.term_rows))),
                Struct(divider(max(1, heads))),
                *(() if self.fp8 is None else (self.fp8.numbers, self._scale)),
                *map(_factor, self.centre_scales),
            )
        )
        moved = bytes_of((operation.o, operation.d_o, operation.stats)) + count * TERM_BYTES
        work = Work(flops=2 * operation.o.element_count, bytes=moved, unit=MathUnit.FMA_F32)
        blocks = ceil_div(count, _TERMS_WARPS * WARP_SIZE // lanes)
        return kernel, Launch(0, (blocks, 1, 1), (_TERMS_WARPS * WARP_SIZE, 1, 1), (arguments,), work=work)

    @property
    def argument(self) -> Struct:
        """The kernels' ``Backward``."""
        operation = self.operation
        heads = operation.q.dims[1]
        return Struct(
            (
                WorkspacePointer(),
                *i32((heads, self.queries, self.keys, self.size_qk, self.size_v, self.term_rows)),
                *self._bounds,
                _lengths(operation.seq_len_q),
                _lengths(operation.seq_len_kv),
                self._scale,
                *(() if self.fp8 is None else (self.fp8.numbers,)),
            )
        )

    @property
    def _bounds(self) -> tuple[Argument, ...]:
        """The kernels' left, right and is_bottom_right."""
        operation, filled = self.operation, filled_band(self.operation)
        if filled is None:
            return i32((*kernel_bounds(operation.left, operation.right), operation.is_bottom_right))
        return (*filled.bounds, *i32((filled.is_bottom_right,)))

    @property
    def _scale(self) -> Struct:
        return _factor(self.operation.scale)

    def flops(self, products: int) -> int:
        """Operations of ``products`` matrix products over the attended pairs, whatever the lengths are."""
        return round(2 * self.seen_share * self.all_heads * self.queries * self.keys * products)

    @cached_property
    def seen_share(self) -> float:
        """The share of attended pairs among all pairs of a query and a key, whatever the lengths are."""
        return seen_pairs(self.operation)


def seen_pairs(operation: SdpaBackward) -> float:
    """The share of pairs of a query and a key that lie in the band."""
    queries, keys = operation.q.dims[2], operation.k.dims[2]
    shift = keys - queries if operation.is_bottom_right else 0
    left, right = kernel_bounds(operation.left, operation.right)
    return seen_share(queries, keys, left - shift, right + shift)


def _types_name(*tensors: Tensor) -> str:
    """One name where all are of the same type."""
    names = [dtypes.info(tensor.data_type).short_name for tensor in tensors]
    return names[0] if len(set(names)) == 1 else "_".join(names)


def _dag(inner: Subgraph, given: Tensor, made: Tensor, dims: tuple[int, ...]) -> PointwiseDag:
    """The DAG from ``given`` to ``made`` in ``inner``."""
    operations = inner.operations_to(made)
    pointwise = tuple(op for op in operations if isinstance(op, PointwiseOperation))
    randoms = tuple(op for op in operations if isinstance(op, RngOperation))
    return dag_of(dims, pointwise, anchor=given, result=made, randoms=randoms)


def _factor(number: Tensor | None) -> Struct:
    """The kernels' ``Factor``; 1 without a number."""
    pointer: Argument = _NULL
    given: Argument = Scalar(ScalarType.F32, 1.0)
    if number is not None and number.constant_value is not None:
        given = Scalar(ScalarType.F32, dtypes.rounded(np.asarray(number.constant_value), number.data_type).item())
    elif number is not None and number.is_by_value:
        given = TensorValue(number.uid, ScalarType.F32)
    elif number is not None:
        pointer = TensorPointer(number.uid)
    return Struct((pointer, given))


def _lengths(tensor: Tensor | None) -> Struct:
    """The kernels' ``Lengths``."""
    if tensor is None:
        return Struct((_NULL, *i64((0,)), *i32((0,))))
    is_i64 = tensor.data_type is DataType.INT64
    return Struct((TensorPointer(tensor.uid), *i64((tensor.strides[0],)), *i32((is_i64,))))


def _refuse_types(operation: SdpaBackward) -> str:
    """Why the kernels do not compute in these types, or an empty string."""
    own, is_fp8 = operation.q.data_type, isinstance(operation, SdpaFp8Backward)
    types, output_types = (dtypes.FP8_TYPES, _OUTPUT_TYPES + dtypes.FP8_TYPES) if is_fp8 else (TYPES, _OUTPUT_TYPES)
    for port in ("q", "k", "v", "o", "d_o"):
        data_type = getattr(operation, port).data_type
        if data_type not in types or not (data_type is own or (is_fp8 and port == "d_o")):
            whose = "all but d_o" if is_fp8 else "all"
            return f"{port}.data_type: expected {_either(types)}, the same for {whose}, got {data_type.name}"
    for port in ("dq", "dk", "dv", "dbias"):
        tensor = outputs_of(operation).get(port, operation.dq)
        is_same = tensor.data_type is operation.dk.data_type or port != "dv"
        if tensor.data_type not in output_types or not is_same:
            expected = f"{_either(output_types)}, the same for dk and dv"
            return f"{port}.data_type: expected {expected}, got {tensor.data_type.name}"
    scale = operation.scale
    if scale is not None and not scale.is_scalar_value and scale.data_type is not DataType.FLOAT:
        return f"scale.data_type: expected FLOAT in device memory, got {scale.data_type.name}"
    return ""


def _either(types: tuple[DataType, ...]) -> str:
    *others, last = (kind.name for kind in types)
    return f"{', '.join(others)} or {last}"


def _refuse_shape(operation: SdpaBackward) -> str:
    """Why extents exceed the kernels' integers, or an empty string."""
    for port, tensor in (inputs_of(operation) | outputs_of(operation)).items():
        is_number = tensor.is_scalar_value and port != "scale" and not port.startswith(("inner", "centre_scales"))
        if is_number or tensor.is_virtual:
            return f"{port}: expected a tensor in device memory, got {tensor.label}"
    batch, heads, queries, size = operation.q.dims
    keys = operation.k.dims[2]
    if not heads:
        return "q.dims[1]: expected at least one head, got 0"
    for port, extent in {"q": size, "v": operation.v.dims[3]}.items():
        if extent % 8 or not 0 < extent <= MAX_SIZE:
            return f"{port}.dims[3]: expected a multiple of 8 up to {MAX_SIZE}, got {extent}"
    if max(queries, keys) > MAX_LENGTH:
        return f"q.dims[2], k.dims[2]: expected at most {MAX_LENGTH}, got {queries} and {keys}"
    if batch * heads * queries > MAX_EXTENT:
        return f"q.dims: expected at most {MAX_EXTENT} rows, got {batch * heads * queries}"
    blocks = batch * heads * ceil_div(max(queries, keys), _FEWEST_ROWS)
    if blocks > MAX_GRID_X:
        return f"dims: expected at most {MAX_GRID_X} tiles of {_FEWEST_ROWS} rows, got {blocks}"
    return ""


def _refuse_inner(operation: SdpaBackward) -> str:
    """Why the operations on the scores cannot be evaluated element by element, or an empty string."""
    inner = operation.inner
    return "" if inner is None else refuse_index_space(inner.operations, operation.scores_dims)
