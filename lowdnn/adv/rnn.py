"""Calls on recurrent networks, with cuDNN's names and the order of its arguments: forward, gradients, sizes of spaces.

Addresses are integers, 0 for NULL; sizes are in bytes. Work goes into the handle's stream and nothing waits for it;
what a call checks, it checks before its first launch. hx and cx begin with 0, and dhy and dcy are 0, where they are
NULL; hy, cy, dhx and dcx may be NULL where they are not wanted. cx, cy, dcx and dcy count for an LSTM alone.
dev_seq_lengths may be NULL where the descriptor has the lengths, which the call then takes to the device itself.
``ops.rnn``, ``ops.rnn_weights`` and ``ops.rnn_saved`` define the network, its weights and its saved tensors.
Source: cudnn_adv.h, cudnnRNNForward, cudnnRNNBackwardData_v8, cudnnRNNBackwardWeights_v8, cudnnGetRNNTempSpaceSizes.
"""

from __future__ import annotations

from lowdnn.adv import dropout_states
from lowdnn.adv.argument_types import check_type
from lowdnn.adv.rnn_call import RnnCall, StateDescriptor, temp_space_sizes
from lowdnn.adv.rnn_descriptors import RNNDataDescriptor, RNNDescriptor
from lowdnn.backend.handle import Handle
from lowdnn.ops.rnn import MAX_SIZE
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.rnn_enums import ForwardMode, WgradMode
from lowdnn.status import BadParamError


def get_rnn_temp_space_sizes(
    handle: Handle, rnn_desc: RNNDescriptor, fwd_mode: ForwardMode, x_desc: RNNDataDescriptor
) -> tuple[int, int]:
    """Bytes of the workspace and of the reserve space; those of training suffice for both gradients too."""
    check_type("get_rnn_temp_space_sizes", fwd_mode, ForwardMode, "fwd_mode")
    return temp_space_sizes(handle, rnn_desc, x_desc, is_training=fwd_mode is ForwardMode.TRAINING)


def build_rnn_dynamic(handle: Handle, rnn_desc: RNNDescriptor, mini_batch: int) -> None:
    """Checks its arguments: plans are made, and kernels compiled, with the first call on a problem."""
    handle.check_open("build_rnn_dynamic")
    if not 1 <= mini_batch <= MAX_SIZE:
        raise BadParamError.at("build_rnn_dynamic.mini_batch", expected=f"1 to {MAX_SIZE}", got=mini_batch)


def rnn_forward(
    handle: Handle,
    rnn_desc: RNNDescriptor,
    fwd_mode: ForwardMode,
    dev_seq_lengths: int,
    x_desc: RNNDataDescriptor,
    x: int,
    y_desc: RNNDataDescriptor,
    y: int,
    h_desc: StateDescriptor | None,
    hx: int,
    hy: int,
    c_desc: StateDescriptor | None,
    cx: int,
    cy: int,
    weight_space_size: int,
    weight_space: int,
    work_space_size: int,
    work_space: int,
    reserve_space_size: int,
    reserve_space: int,
) -> None:
    """y, hy and cy. TRAINING fills the reserve space for the gradients, and drops elements between layers."""
    check_type("rnn_forward", fwd_mode, ForwardMode, "fwd_mode")
    is_training = fwd_mode is ForwardMode.TRAINING
    call = RnnCall("rnn_forward", handle, rnn_desc, x_desc, y_desc, RnnForward, is_training=is_training)
    call.take_sequences(dev_seq_lengths, x=x, y=y)
    call.take_states(h_desc, hx=hx, hy=hy)
    call.take_cell_states(c_desc, cx=cx, cy=cy)
    call.take_weights(weight_space_size, w=weight_space)
    if is_training:
        call.take_reserve(reserve_space_size, reserve_space)
    run = call.prepared(work_space_size, work_space)
    if call.drops:
        dropout_states.draw(handle, rnn_desc.dropout_desc, reserve_space)
    run()


def rnn_backward_data(
    handle: Handle,
    rnn_desc: RNNDescriptor,
    dev_seq_lengths: int,
    y_desc: RNNDataDescriptor,
    y: int,
    dy: int,
    x_desc: RNNDataDescriptor,
    dx: int,
    h_desc: StateDescriptor | None,
    hx: int,
    dhy: int,
    dhx: int,
    c_desc: StateDescriptor | None,
    cx: int,
    dcy: int,
    dcx: int,
    weight_space_size: int,
    weight_space: int,
    work_space_size: int,
    work_space: int,
    reserve_space_size: int,
    reserve_space: int,
) -> None:
    """dx, dhx and dcx; leaves in the reserve space what ``rnn_backward_weights`` needs."""
    call = RnnCall("rnn_backward_data", handle, rnn_desc, x_desc, y_desc, RnnBackwardData)
    call.take_sequences(dev_seq_lengths, y=y, dy=dy, dx=dx)
    call.take_states(h_desc, hx=hx, dhy=dhy, dhx=dhx)
    call.take_cell_states(c_desc, cx=cx, dcy=dcy, dcx=dcx)
    call.take_weights(weight_space_size, w=weight_space)
    call.take_reserve(reserve_space_size, reserve_space)
    call.prepared(work_space_size, work_space)()


def rnn_backward_weights(
    handle: Handle,
    rnn_desc: RNNDescriptor,
    add_grad: WgradMode,
    dev_seq_lengths: int,
    x_desc: RNNDataDescriptor,
    x: int,
    h_desc: StateDescriptor | None,
    hx: int,
    y_desc: RNNDataDescriptor,
    y: int,
    weight_space_size: int,
    dweight_space: int,
    work_space_size: int,
    work_space: int,
    reserve_space_size: int,
    reserve_space: int,
) -> None:
    """The gradient of the weights, set or added, behind ``rnn_backward_data`` of the same forward call."""
    check_type("rnn_backward_weights", add_grad, WgradMode, "add_grad")
    is_added = add_grad is WgradMode.ADD
    call = RnnCall("rnn_backward_weights", handle, rnn_desc, x_desc, y_desc, RnnBackwardWeights, is_added=is_added)
    call.take_sequences(dev_seq_lengths, x=x, y=y)
    call.take_states(h_desc, hx=hx)
    call.take_weights(weight_space_size, dw=dweight_space)
    call.take_reserve(reserve_space_size, reserve_space)
    call.prepared(work_space_size, work_space)()
