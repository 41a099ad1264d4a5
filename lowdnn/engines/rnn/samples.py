"""Common recurrent networks: the kernels of their steps are shipped precompiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_tensors import dims_by_port, type_of
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.rnn_enums import RNNMode

_STEPS, _BATCH, _SIZE = 2, 64, 1024


def samples() -> Iterator[OperationGraph]:
    """An LSTM and a GRU in fp16 and bf16 with 1024 units, 64 sequences in training, and one in an inference."""
    for data_type in (DataType.HALF, DataType.BFLOAT16):
        for cell_mode in (RNNMode.LSTM, RNNMode.GRU):
            rnn, one = (Rnn(cell_mode, _STEPS, batch, _SIZE, _SIZE) for batch in (_BATCH, 1))
            tensors = _tensors(rnn, data_type)
            yield OperationGraph([RnnForward.of(rnn, tensors, is_training=True)])
            yield OperationGraph([RnnBackwardData.of(rnn, tensors)])
            yield OperationGraph([RnnForward.of(one, _tensors(one, data_type))])


def _tensors(rnn: Rnn, data_type: DataType) -> Mapping[str, Tensor]:
    """The tensors by port; sequences and what lies between them, without lengths."""
    rows = (rnn.max_length, rnn.batch_size)
    sequences = {"x": rnn.input_size, "dx": rnn.input_size, "y": rnn.output_size, "dy": rnn.output_size}
    dims = {**dims_by_port(rnn), **{port: (*rows, size) for port, size in sequences.items()}}
    del dims["seq_lengths"]
    return {
        port: Tensor(uid, type_of(port, data_type), extents, packed_strides(extents), alignment_bytes=16)
        for uid, (port, extents) in enumerate(dims.items())
    }
