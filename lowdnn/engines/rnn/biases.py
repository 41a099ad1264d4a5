"""Gradients of the biases of a network: one sum over all rows of all pseudo-layers, and a launch of ``rnn_biases``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.engines.launch import ceil_div, dependent_target, i32, is_dependent, macros, target_label
from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.sequences import Sequences
from lowdnn.ops.rnn_weights import WeightSpace
from lowdnn.plan import KernelRef, Launch, Struct, Work

_THREADS = 256


@dataclass(frozen=True)
class Params:
    """Macros of ``rnn_biases.cu``."""

    TYPE: str
    ADDS: int
    THREADS: int


def add_bias_gradients(sequences: Sequences, *, is_added: bool) -> None:
    """Adds the launches, none where there are no biases. is_added: whether the gradients are added to what is there."""
    network, rnn, arch = sequences.network, sequences.rnn, sequences.arch
    first = WeightSpace(rnn).layers[0]
    sides = [region for region in (first.input_bias, first.recurrent_bias) if region is not None]
    if not sides:
        return
    sums, biases = _sums(sequences), network.arrays["dw"].part(sides[0].offset, (), ())
    rows, hidden = rnn.gates * rnn.hidden_size, rnn.hidden_size
    has_own_block = rnn.is_gru and rnn.reset_after
    unshifted = rows if first.input_bias is not None else 0
    fields = (
        *(sums.pointer, biases.pointer),
        *i32((rows, sums.dims[-1], len(sides) * rows, unshifted)),
        *i32((2 * hidden, hidden if has_own_block else 0)),
    )
    launch = Launch(
        kernel=0,
        grid=(ceil_div(len(sides) * rows, _THREADS), rnn.pseudo_layers, 1),
        block=(_THREADS, 1, 1),
        arguments=(Struct(fields),),
        work=Work(bytes=rnn.pseudo_layers * len(sides) * rows * (sums.element_bytes + biases.element_bytes)),
        overlaps_previous=is_dependent(arch),
    )
    sequences.parts.add(_kernel(sequences, is_added=is_added), launch)


def _sums(sequences: Sequences) -> Array:
    """Sums of the gate gradients over all rows: (L * D, 1, elements)."""
    network, dgates = sequences.network, sequences.network.arrays["dgates"]
    layers, steps, sequence_count, elements = dgates.dims
    rows = dgates.part(0, (layers, steps * sequence_count, elements), (dgates.strides[0], elements, 1))
    sums = sequences.reserved(layers, 1, elements, data_type=network.compute_type)
    sequences.delegate.sum_rows(rows, sums)
    return sums


def _kernel(sequences: Sequences, *, is_added: bool) -> KernelRef:
    facts, target = dtypes.info(sequences.network.data_type), dependent_target(sequences.arch)
    params = Params(TYPE=facts.c_type, ADDS=int(is_added), THREADS=_THREADS)
    return KernelRef(
        name=f"rnn_biases_{facts.short_name}_add{params.ADDS}_{target_label(target)}",
        source="rnn/rnn_biases.cu",
        target=target,
        parameters=macros(params),
    )
