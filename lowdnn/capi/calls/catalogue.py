"""Every call by the name of its C function."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.capi.calls import (
    activations,
    backend,
    batch_norms,
    causal_convolutions,
    convolution_descriptors,
    convolution_epilogue,
    convolution_operands,
    convolutions,
    dropout,
    elementwise,
    fft_causal_convolutions,
    fused_packs,
    fused_plans,
    handles,
    local_norms,
    norms,
    operation_descriptors,
    pooling,
    reductions,
    rnn,
    rnn_descriptors,
    softmax,
    tensor_descriptors,
    transforms,
)
from lowdnn.capi.errors import Call
from lowdnn.capi.refusals import reason_of
from lowdnn.capi.signatures import functions

CALLS: Mapping[str, Call] = {
    **handles.CALLS,
    **backend.CALLS,
    **tensor_descriptors.CALLS,
    **convolution_descriptors.CALLS,
    **convolutions.CALLS,
    **convolution_epilogue.CALLS,
    **convolution_operands.CALLS,
    **operation_descriptors.CALLS,
    **activations.CALLS,
    **elementwise.CALLS,
    **pooling.CALLS,
    **softmax.CALLS,
    **reductions.CALLS,
    **batch_norms.CALLS,
    **norms.CALLS,
    **local_norms.CALLS,
    **causal_convolutions.CALLS,
    **fft_causal_convolutions.CALLS,
    **dropout.CALLS,
    **transforms.CALLS,
    **fused_packs.CALLS,
    **fused_plans.CALLS,
    **rnn_descriptors.CALLS,
    **rnn.CALLS,
}


def support() -> Mapping[str, str | None]:
    """For each of the 239 documented functions, None if it works, otherwise the feature that it belongs to and lowdnn
    lacks."""
    return {
        name: None if name in CALLS or function.result.base != "Status" else reason_of(name)
        for name, function in functions().items()
    }
