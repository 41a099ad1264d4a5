"""Recurrent networks: sizes of their spaces, addresses of their weights, forward and gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from lowdnn import adv
from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.rnn_descriptors import RnnDescriptor, network_of, sequences_of
from lowdnn.capi.calls.shared import member
from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, variable_at, write_outputs, write_wanted
from lowdnn.capi.state import State
from lowdnn.rnn_enums import ForwardMode, WgradMode


def build_dynamic(state: State, handle: Address, rnn_desc: Address, mini_batch: int) -> None:
    where = "cudnnBuildRNNDynamic"
    user = state.objects.get(handle, Handle, f"{where}.handle")
    adv.build_rnn_dynamic(user, network_of(state, rnn_desc, f"{where}.rnnDesc"), mini_batch)


def temp_space_sizes(
    state: State, handle: Address, rnn_desc: Address, fwd_mode: int, x_desc: Address, work_space_size: Address,
    reserve_space_size: Address,
) -> None:  # fmt: skip
    """Either size may be left out with NULL."""
    where = "cudnnGetRNNTempSpaceSizes"
    work_bytes, reserve_bytes = adv.get_rnn_temp_space_sizes(
        state.objects.get(handle, Handle, f"{where}.handle"),
        network_of(state, rnn_desc, f"{where}.rnnDesc"),
        member(ForwardMode, fwd_mode, f"{where}.fwdMode"),
        sequences_of(state, x_desc, f"{where}.xDesc"),
    )
    write_wanted(
        (work_space_size, "Q", work_bytes, f"{where}.workSpaceSize"),
        (reserve_space_size, "Q", reserve_bytes, f"{where}.reserveSpaceSize"),
    )


def weight_space_size(state: State, handle: Address, rnn_desc: Address, size: Address) -> None:
    where = "cudnnGetRNNWeightSpaceSize"
    state.objects.get(handle, Handle, f"{where}.handle")
    found = adv.get_rnn_weight_space_size(network_of(state, rnn_desc, f"{where}.rnnDesc"))
    write_outputs((size, "Q", found, f"{where}.weightSpaceSize"))


def weight_params(
    state: State, handle: Address, rnn_desc: Address, pseudo_layer: int, weight_space_size: int, weight_space: Address,
    lin_layer_id: int, m_desc: Address, m_addr: Address, b_desc: Address, b_addr: Address,
) -> None:  # fmt: skip
    """Writes the address and the descriptor of a matrix and of its bias. If the network lacks one, its address is NULL
    and its descriptor is left unset. An output that is NULL is not written: PyTorch asks for a matrix or a bias alone.
    Without a weight space the addresses are offsets in it, which XLA asks for. PyTorch asks thousands of times for one
    network, so results that do not depend on addresses are cached.
    """
    objects = state.objects
    objects.get(handle, Handle, "cudnnGetRNNWeightParams.handle")
    holder = objects.get(rnn_desc, RnnDescriptor, "cudnnGetRNNWeightParams.rnnDesc")
    _tensor(state, m_desc, "cudnnGetRNNWeightParams.mDesc")
    _tensor(state, b_desc, "cudnnGetRNNWeightParams.bDesc")
    begin = weight_space or 0
    found = holder.linear_layers.get((pseudo_layer, lin_layer_id))
    if found is None or weight_space_size < holder.weight_space_bytes:
        network = network_of(state, rnn_desc, "cudnnGetRNNWeightParams.rnnDesc")
        adv.get_rnn_weight_params(network, pseudo_layer, weight_space_size, begin, lin_layer_id)
        return
    matrix, m_offset, bias, b_offset = found
    if m_addr:
        variable_at(ctypes.c_uint64, m_addr).value = 0 if m_offset is None else begin + m_offset
    if b_addr:
        variable_at(ctypes.c_uint64, b_addr).value = 0 if b_offset is None else begin + b_offset
    if m_desc:
        objects.replace(m_desc, matrix)
    if b_desc:
        objects.replace(b_desc, bias)


def forward(
    state: State, handle: Address, rnn_desc: Address, fwd_mode: int, dev_seq_lengths: Address, x_desc: Address,
    x: Address, y_desc: Address, y: Address, h_desc: Address, hx: Address, hy: Address, c_desc: Address, cx: Address,
    cy: Address, weight_space_size: int, weight_space: Address, work_space_size: int, work_space: Address,
    reserve_space_size: int, reserve_space: Address,
) -> None:  # fmt: skip
    where = "cudnnRNNForward"
    adv.rnn_forward(
        state.objects.get(handle, Handle, f"{where}.handle"),
        network_of(state, rnn_desc, f"{where}.rnnDesc"),
        member(ForwardMode, fwd_mode, f"{where}.fwdMode"),
        dev_seq_lengths or 0,
        sequences_of(state, x_desc, f"{where}.xDesc"),
        x or 0,
        sequences_of(state, y_desc, f"{where}.yDesc"),
        y or 0,
        _tensor(state, h_desc, f"{where}.hDesc"),
        hx or 0,
        hy or 0,
        _tensor(state, c_desc, f"{where}.cDesc"),
        cx or 0,
        cy or 0,
        weight_space_size,
        weight_space or 0,
        work_space_size,
        work_space or 0,
        reserve_space_size,
        reserve_space or 0,
    )


def backward_data(
    state: State, handle: Address, rnn_desc: Address, dev_seq_lengths: Address, y_desc: Address, y: Address,
    dy: Address, x_desc: Address, dx: Address, h_desc: Address, hx: Address, dhy: Address, dhx: Address,
    c_desc: Address, cx: Address, dcy: Address, dcx: Address, weight_space_size: int, weight_space: Address,
    work_space_size: int, work_space: Address, reserve_space_size: int, reserve_space: Address,
) -> None:  # fmt: skip
    where = "cudnnRNNBackwardData_v8"
    adv.rnn_backward_data(
        state.objects.get(handle, Handle, f"{where}.handle"),
        network_of(state, rnn_desc, f"{where}.rnnDesc"),
        dev_seq_lengths or 0,
        sequences_of(state, y_desc, f"{where}.yDesc"),
        y or 0,
        dy or 0,
        sequences_of(state, x_desc, f"{where}.xDesc"),
        dx or 0,
        _tensor(state, h_desc, f"{where}.hDesc"),
        hx or 0,
        dhy or 0,
        dhx or 0,
        _tensor(state, c_desc, f"{where}.cDesc"),
        cx or 0,
        dcy or 0,
        dcx or 0,
        weight_space_size,
        weight_space or 0,
        work_space_size,
        work_space or 0,
        reserve_space_size,
        reserve_space or 0,
    )


def backward_weights(
    state: State, handle: Address, rnn_desc: Address, add_grad: int, dev_seq_lengths: Address, x_desc: Address,
    x: Address, h_desc: Address, hx: Address, y_desc: Address, y: Address, weight_space_size: int,
    dweight_space: Address, work_space_size: int, work_space: Address, reserve_space_size: int,
    reserve_space: Address,
) -> None:  # fmt: skip
    where = "cudnnRNNBackwardWeights_v8"
    adv.rnn_backward_weights(
        state.objects.get(handle, Handle, f"{where}.handle"),
        network_of(state, rnn_desc, f"{where}.rnnDesc"),
        member(WgradMode, add_grad, f"{where}.addGrad"),
        dev_seq_lengths or 0,
        sequences_of(state, x_desc, f"{where}.xDesc"),
        x or 0,
        _tensor(state, h_desc, f"{where}.hDesc"),
        hx or 0,
        sequences_of(state, y_desc, f"{where}.yDesc"),
        y or 0,
        weight_space_size,
        dweight_space or 0,
        work_space_size,
        work_space or 0,
        reserve_space_size,
        reserve_space or 0,
    )


def _tensor(state: State, descriptor: Address, where: str) -> TensorDescriptor | None:
    """The tensor, None for NULL."""
    return state.objects.get(descriptor, TensorDescriptor, where) if descriptor else None


CALLS: Mapping[str, Call] = {
    "cudnnBuildRNNDynamic": build_dynamic,
    "cudnnGetRNNTempSpaceSizes": temp_space_sizes,
    "cudnnGetRNNWeightSpaceSize": weight_space_size,
    "cudnnGetRNNWeightParams": weight_params,
    "cudnnRNNForward": forward,
    "cudnnRNNBackwardData_v8": backward_data,
    "cudnnRNNBackwardWeights_v8": backward_weights,
}
