"""Scaled dot product attention as one operation:

    o = dropout(softmax(modified(scale * q k^T))) v

Dims of q, k and v: see ``sdpa``; o is (B, H, S_q, D_v). scale is one number, 1 where there is none. ``modified`` is
the sub-graph from the scores, a tensor (B, H, S_q, S_kv) with the uid ``subgraph_input_uid``, to the tensor with
``subgraph_output_uid``; its other inputs are inputs of the graph. Lengths, one for each batch or cumulated (see
``diagonal_band_mask``), leave out the queries and keys from there on. Such queries have no sink, their o and sum of
exponentials are 0, their maximum and stats are minus infinity. block_mask: see the operation of that name; it comes
behind the sub-graph. k and v with page tables are containers of pages (see ``paged_cache_load``), of sequences with
these lengths.
``softmax`` says which statistics there are; its x and y stand for tensors that are inside. stats, (B, H, S_q, 1), may
be given beside it. Dropout zeroes weights with ``dropout_probability`` and divides the others by what is left of 1;
rng_dump, (B, H, S_q, S_kv), gets 1 for each weight that is kept, otherwise 0.
Scores, softmax and weights are computed in FLOAT; the weights are rounded to the type of q for the second product.
Numbers for fp8 have one element, in FLOAT, and are 1 where they are left out. q, k and v stand for themselves times
descale_q, descale_k and descale_v. Weights are multiplied by scale_s before they are rounded, and their products with v
by descale_s; o is stored times scale_o. The largest magnitudes of the softmax, and of o before scale_o, go to amax_s
and amax_o.
It stands for several operations, which ``graph.expansion`` puts in its place.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.base import HasPorts, inputs_of, outputs_of
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.sdpa import Lengths, check_heads, check_index_types, check_lengths
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, UnsupportedDataTypeError, UnsupportedShapeError

_WHERE = "sdpa_forward"


class ScoreModifier(Protocol):
    """Operations between scores."""

    @property
    def operations(self) -> tuple[HasPorts, ...]: ...


@dataclass(frozen=True)
class SdpaForward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_SDPA_FWD

    q: Tensor = tensor_input(AttributeName.OPERATION_SDPA_FWD_QDESC)
    k: Tensor = tensor_input(AttributeName.OPERATION_SDPA_FWD_KDESC)
    v: Tensor = tensor_input(AttributeName.OPERATION_SDPA_FWD_VDESC)
    o: Tensor = tensor_output(AttributeName.OPERATION_SDPA_FWD_ODESC)
    stats: Tensor | None = tensor_output(AttributeName.OPERATION_SDPA_FWD_STATSDESC, default=None)
    scale: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_SCALEDESC, default=None)
    block_mask: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_BLOCK_MASK_DESC, default=None)
    seq_len_q: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_SEQ_LEN_QDESC, default=None)
    seq_len_kv: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, default=None)
    cu_seq_len_q: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_CU_SEQ_LEN_QDESC, default=None)
    cu_seq_len_kv: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_CU_SEQ_LEN_KVDESC, default=None)
    page_table_k: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_PAGE_TABLE_KDESC, default=None)
    page_table_v: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_PAGE_TABLE_VDESC, default=None)
    subgraph: ScoreModifier | None = attribute(
        AttributeName.OPERATION_SDPA_FWD_SUBGRAPH,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.OPERATIONGRAPH,
        default=None,
    )
    subgraph_input_uid: int | None = attribute(
        AttributeName.OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, AttributeType.INT64, default=None
    )
    subgraph_output_uid: int | None = attribute(
        AttributeName.OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, AttributeType.INT64, default=None
    )
    softmax: Softmax | None = attribute(
        AttributeName.OPERATION_SDPA_FWD_SOFTMAX_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.OPERATION_SOFTMAX,
        default=None,
    )
    dropout_seed: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_DROPOUT_SEED_DESC, default=None)
    dropout_offset: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_DROPOUT_OFFSET_DESC, default=None)
    rng_dump: Tensor | None = tensor_output(AttributeName.OPERATION_SDPA_FWD_DROPOUT_RNG_DUMP_DESC, default=None)
    dropout_probability: float = attribute(
        AttributeName.OPERATION_SDPA_FWD_DROPOUT_PROBABILITY, AttributeType.FLOAT, default=0.0
    )
    descale_q: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_DESCALE_QDESC, default=None)
    descale_k: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_DESCALE_KDESC, default=None)
    descale_v: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_DESCALE_VDESC, default=None)
    descale_s: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_DESCALE_SDESC, default=None)
    scale_s: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_SCALE_SDESC, default=None)
    scale_o: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_FWD_SCALE_ODESC, default=None)
    amax_s: Tensor | None = tensor_output(AttributeName.OPERATION_SDPA_FWD_AMAX_SDESC, default=None)
    amax_o: Tensor | None = tensor_output(AttributeName.OPERATION_SDPA_FWD_AMAX_ODESC, default=None)

    def __post_init__(self) -> None:
        self._check_pages()
        k, v = (self._loaded(x, table) for x, table in self._keys_and_values)
        check_heads(_WHERE, self.q, k, v)
        check_dims(_WHERE, (*self.q.dims[:3], self.v.dims[3]), {"o": self.o})
        check_dims(_WHERE, (*self.q.dims[:3], 1), {"stats": self.stats})
        check_float(_WHERE, {"q": self.q, "k": self.k, "v": self.v, "o": self.o})
        if self.scale is not None:
            check_float(_WHERE, {"scale": self.scale})
            if self.scale.element_count != 1:
                raise BadParamError.at(f"{_WHERE}.scale.dims", expected="one element", got=list(self.scale.dims))
        check_lengths(_WHERE, self.q.dims[0], self.lengths)
        self._check_subgraph()
        self._check_softmax()
        self._check_dropout()
        self._check_numbers()

    @property
    def scores_dims(self) -> tuple[int, ...]:
        return (*self.q.dims[:3], self.key_count)

    @property
    def key_count(self) -> int:
        """S_kv: the rows of k or v outside of pages, or of the softmax, or those that the page tables have room for."""
        for x, table in self._keys_and_values:
            if table is None:
                return x.dims[2]
        if self.softmax is not None:
            return self.softmax.x.dims[-1]
        return min(x.dims[2] * table.dims[2] for x, table in self._keys_and_values if table is not None)

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.seq_len_q, self.seq_len_kv, self.cu_seq_len_q, self.cu_seq_len_kv)

    @property
    def subgraph_ends(self) -> tuple[Tensor, Tensor] | None:
        """The scores as the sub-graph reads and as it writes them, None where there is no sub-graph."""
        return ends_of(_WHERE, self.subgraph, self.subgraph_input_uid, self.subgraph_output_uid)

    @property
    def _keys_and_values(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """k and v, each with its page table."""
        return (self.k, self.page_table_k), (self.v, self.page_table_v)

    def _loaded(self, x: Tensor, table: Tensor | None) -> Tensor:
        """k or v as a tensor (B, H, S_kv, D), loaded from pages where it lies there."""
        if table is None:
            return x
        dims = (self.q.dims[0], x.dims[1], self.key_count, x.dims[3])
        return replace(x, dims=dims, strides=packed_strides(dims))

    def _check_pages(self) -> None:
        for port, (x, table) in zip("kv", self._keys_and_values, strict=True):
            if table is None:
                continue
            if x.rank != 4 or table.rank != 4:
                got = f"{list(x.dims)} and {list(table.dims)}"
                expected = "pages [pages, heads, rows, size] and a table [batch, 1, entries, 1]"
                raise UnsupportedShapeError.at(f"{_WHERE}.page_table_{port}.dims", expected=expected, got=got)
            if self.seq_len_kv is None and self.cu_seq_len_kv is None:
                raise BadParamError.at(f"{_WHERE}.seq_len_kv", expected=f"a tensor with page_table_{port}", got="none")

    def _check_subgraph(self) -> None:
        ends = self.subgraph_ends
        if ends is not None:
            check_dims(_WHERE, self.scores_dims, {"subgraph_input": ends[0], "subgraph_output": ends[1]})

    def _check_softmax(self) -> None:
        if self.softmax is None:
            return
        check_dims(_WHERE, self.scores_dims, {"softmax.x": self.softmax.x})
        given = {"stats": self.softmax.stats, "max": self.softmax.max, "sum_exp": self.softmax.sum_exp}
        check_dims(_WHERE, (*self.q.dims[:3], 1), {f"softmax.{port}": tensor for port, tensor in given.items()})
        if self.stats is not None and self.softmax.stats is not None:
            raise BadParamError.at(f"{_WHERE}.stats", expected="none beside those of the softmax", got="both")

    def _check_dropout(self) -> None:
        check_dropout(_WHERE, self.dropout_probability, self.dropout_seed, self.dropout_offset)
        check_index_types(_WHERE, {"dropout_seed": self.dropout_seed, "dropout_offset": self.dropout_offset})
        if self.rng_dump is not None and not self.dropout_probability:
            raise BadParamError.at(f"{_WHERE}.rng_dump", expected="none without dropout", got=self.rng_dump.label)
        check_dims(_WHERE, self.scores_dims, {"rng_dump": self.rng_dump})

    def _check_numbers(self) -> None:
        """Checks the scales of fp8."""
        for port in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o", "amax_s", "amax_o"):
            number: Tensor | None = getattr(self, port)
            if number is not None and number.dims != (1, 1, 1, 1):
                hint = "no engine has attention with scales of blocks"
                got_dims = list(number.dims)
                raise UnsupportedShapeError.at(f"{_WHERE}.{port}.dims", expected=[1, 1, 1, 1], got=got_dims, hint=hint)
            if number is not None and number.data_type is not DataType.FLOAT:
                got = number.data_type.name
                raise UnsupportedDataTypeError.at(f"{_WHERE}.{port}.data_type", expected="FLOAT", got=got)


def ends_of(
    where: str, subgraph: ScoreModifier | None, input_uid: int | None, output_uid: int | None
) -> tuple[Tensor, Tensor] | None:
    """The tensors with these uids, which ``subgraph`` reads and writes; None where there is no sub-graph.

    Raises BadParamError for other uids.
    """
    if subgraph is None:
        return None
    read = {tensor.uid: tensor for op in subgraph.operations for tensor in inputs_of(op).values()}
    written = {tensor.uid: tensor for op in subgraph.operations for tensor in outputs_of(op).values()}
    ends = []
    for uid, tensors, port in (
        (input_uid, read, "subgraph_input_uid"),
        (output_uid, written, "subgraph_output_uid"),
    ):
        if uid is None or uid not in tensors or (tensors is read and uid in written):
            expected = "the uid of an input of the sub-graph" if tensors is read else "a uid that it writes"
            raise BadParamError.at(f"{where}.{port}", expected=expected, got=uid)
        ends.append(tensors[uid])
    first, last = ends
    return first, last


def check_dropout(where: str, probability: float, seed: Tensor | None, offset: Tensor | None) -> None:
    """Raises BadParamError for a probability that is none, and for one without a seed or an offset."""
    if not 0 <= probability < 1:
        raise BadParamError.at(f"{where}.dropout_probability", expected="0 to 1, not 1", got=probability)
    for port, tensor in {"dropout_seed": seed, "dropout_offset": offset}.items():
        if probability and tensor is None:
            raise BadParamError.at(f"{where}.{port}", expected="a tensor with dropout", got="none")
