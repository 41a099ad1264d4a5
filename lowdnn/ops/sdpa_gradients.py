"""The gradients of scaled dot product attention as a descriptor has them: ``sdpa_backward`` with what it says beside.

``subgraph`` makes, from the scores with the uid ``subgraph_input_uid``, those with ``subgraph_output_uid``, as in
``sdpa_forward``: pointwise operations, whose gradient is derived (``derivative``), and random numbers; others are
refused. With dbias they are sums with what does not depend on the scores, and selections that put a constant near
minus infinity in their place, so that the gradient of what is added is that of the scores. Lengths may be cumulated.
With ``dropout_probability`` the weights are those that the seed and the offset gave the forward operation. A sink,
(1, H, 1, 1), is part of stats, and is read where its gradient is wanted:

    dsink = - sum over batches and rows that exist of exp(sink - stats) * D,    D = sum over the last axis of d_o * o

It stands for several operations, which ``graph.expansion`` puts in its place.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.one_line import listed
from lowdnn.ops.base import HasPorts
from lowdnn.ops.derivative import gradient_through
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.sdpa import LOWEST, Lengths, check_heads, check_index_types, check_lengths
from lowdnn.ops.sdpa_forward import ScoreModifier, check_dropout, ends_of
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, NotSupportedError

_WHERE = "sdpa_backward"


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
            _check_gradient(ends, self.subgraph.operations, self.dbias)

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


def _check_gradient(ends: tuple[Tensor, Tensor], operations: tuple[HasPorts, ...], dbias: Tensor | None) -> None:
    """Raises NotSupportedError for what has no derivative, and with dbias for anything but sums and masks."""
    (scores, modified), where = ends, f"{_WHERE}.subgraph"
    gradient = replace(modified, uid=-1, is_virtual=True)
    added, _ = gradient_through(where, operations, scores, modified, gradient, count(-2, -1).__next__, LOWEST)
    if dbias is not None and added:
        expected = "sums, and selections of constants near minus infinity, with dbias"
        raise NotSupportedError.at(where, expected=expected, got=listed([op.mode.name for op in added]))
