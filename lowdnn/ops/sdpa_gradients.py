"""The gradients of scaled dot product attention as a descriptor has them: ``sdpa_backward`` with what it says beside.

``subgraph`` makes, from the scores with the uid ``subgraph_input_uid``, those with ``subgraph_output_uid``, as in
``sdpa_forward``. The gradient passes it unchanged: that is right for sums with what does not depend on the scores, and
for selections that put a number near minus infinity in their place, whose weights vanish. Others are refused. Lengths
may be cumulated. With ``dropout_probability`` the weights are those that the seed and the offset gave the forward
operation. A sink, (1, H, 1, 1), is part of stats, and is read where its gradient is wanted:

    dsink = - sum over batches and rows that exist of exp(sink - stats) * D,    D = sum over the last axis of d_o * o

It stands for several operations, which ``graph.expansion`` puts in its place.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.enums import AttributeName, AttributeType, DescriptorType, PointwiseMode
from lowdnn.ops.base import HasPorts, outputs_of
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.sdpa import Lengths, check_heads, check_index_types, check_lengths
from lowdnn.ops.sdpa_forward import ScoreModifier, check_dropout, ends_of
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, NotSupportedError

_WHERE = "sdpa_backward"
#: A constant from here down leaves no weight in fp32, whatever the other scores of its row.
_LOWEST = -1e9


@dataclass(frozen=True)
class SdpaGradients:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_SDPA_BWD

    q: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_QDESC)
    k: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_KDESC)
    v: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_VDESC)
    o: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_ODESC)
    d_o: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_DODDESC)
    stats: Tensor = tensor_input(AttributeName.OPERATION_SDPA_BWD_STATSDESC)
    dq: Tensor = tensor_output(AttributeName.OPERATION_SDPA_BWD_DQDESC)
    dk: Tensor = tensor_output(AttributeName.OPERATION_SDPA_BWD_DKDESC)
    dv: Tensor = tensor_output(AttributeName.OPERATION_SDPA_BWD_DVDESC)
    scale: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_SCALEDESC, default=None)
    seq_len_q: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_SEQ_LEN_QDESC, default=None)
    seq_len_kv: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_SEQ_LEN_KVDESC, default=None)
    cu_seq_len_q: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_CU_SEQ_LEN_QDESC, default=None)
    cu_seq_len_kv: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_CU_SEQ_LEN_KVDESC, default=None)
    sink: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_SINK_DESC, default=None)
    dsink: Tensor | None = tensor_output(AttributeName.OPERATION_SDPA_BWD_DSINK_DESC, default=None)
    dbias: Tensor | None = tensor_output(AttributeName.OPERATION_SDPA_BWD_DBIAS_DESC, default=None)
    subgraph: ScoreModifier | None = attribute(
        AttributeName.OPERATION_SDPA_BWD_SUBGRAPH,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.OPERATIONGRAPH,
        default=None,
    )
    subgraph_input_uid: int | None = attribute(
        AttributeName.OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, AttributeType.INT64, default=None
    )
    subgraph_output_uid: int | None = attribute(
        AttributeName.OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, AttributeType.INT64, default=None
    )
    dropout_seed: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_DROPOUT_SEED_DESC, default=None)
    dropout_offset: Tensor | None = tensor_input(AttributeName.OPERATION_SDPA_BWD_DROPOUT_OFFSET_DESC, default=None)
    dropout_probability: float = attribute(
        AttributeName.OPERATION_SDPA_BWD_DROPOUT_PROBABILITY, AttributeType.FLOAT, AttributeType.DOUBLE, default=0.0
    )

    def __post_init__(self) -> None:
        check_heads(_WHERE, self.q, self.k, self.v)
        check_lengths(_WHERE, self.q.dims[0], self.lengths)
        check_dropout(_WHERE, self.dropout_probability, self.dropout_seed, self.dropout_offset)
        check_index_types(_WHERE, {"dropout_seed": self.dropout_seed, "dropout_offset": self.dropout_offset})
        self._check_sink()
        ends = self.subgraph_ends
        if ends is not None and self.subgraph is not None:
            check_dims(_WHERE, self.scores_dims, {"subgraph_input": ends[0], "subgraph_output": ends[1]})
            _check_passes(ends[0], self.subgraph.operations)

    @property
    def scores_dims(self) -> tuple[int, ...]:
        return (*self.q.dims[:3], self.k.dims[2])

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.seq_len_q, self.seq_len_kv, self.cu_seq_len_q, self.cu_seq_len_kv)

    @property
    def subgraph_ends(self) -> tuple[Tensor, Tensor] | None:
        """The scores as the sub-graph reads and as it writes them, None where there is no sub-graph."""
        return ends_of(_WHERE, self.subgraph, self.subgraph_input_uid, self.subgraph_output_uid)

    def _check_sink(self) -> None:
        check_dims(_WHERE, (1, self.q.dims[1], 1, 1), {"sink": self.sink, "dsink": self.dsink})
        if self.dsink is not None and self.sink is None:
            raise BadParamError.at(f"{_WHERE}.dsink", expected="none without a sink", got=self.dsink.label)
        for port, tensor in {"sink": self.sink, "dsink": self.dsink}.items():
            if tensor is not None:
                check_float(_WHERE, {port: tensor})


def _check_passes(scores: Tensor, operations: tuple[HasPorts, ...]) -> None:
    """Raises NotSupportedError where the gradient would not pass an operation unchanged."""
    dependent = {scores.uid}
    for op in operations:
        if not isinstance(op, PointwiseOperation):
            continue
        reads = [port for port, tensor in op.operands.items() if tensor.uid in dependent]
        if not reads or op.mode is PointwiseMode.GEN_INDEX:
            continue
        if not _passes(op, reads):
            expected = "sums, and selections of numbers near minus infinity"
            raise NotSupportedError.at(f"{_WHERE}.subgraph", expected=expected, got=op.mode.name)
        dependent |= {tensor.uid for tensor in outputs_of(op).values()}


def _passes(op: PointwiseOperation, reads: list[str]) -> bool:
    """Whether the derivative of ``op`` by the one operand at ``reads`` is 1 wherever a weight is left."""
    match op.mode, reads:
        case PointwiseMode.IDENTITY, ["x"]:
            return op.alpha1 == 1
        case PointwiseMode.ADD, ["x"] | ["b"]:
            return (op.alpha1 if reads == ["x"] else op.alpha2) == 1
        case PointwiseMode.SUB, ["x"]:
            return op.alpha1 == 1
        case PointwiseMode.BINARY_SELECT, ["x"] | ["b"]:
            other = op.operands["b" if reads == ["x"] else "x"]
            value = other.constant_value
            return value <= _LOWEST if value is not None else other.is_by_value
    return False
