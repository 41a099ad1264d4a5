"""Every call by the name of its C function."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.capi.calls import (
    activations,
    backend,
    batch_norms,
    convolution_descriptors,
    convolution_epilogue,
    convolutions,
    dropout,
    elementwise,
    handles,
    local_norms,
    norms,
    operation_descriptors,
    pooling,
    reductions,
    tensor_descriptors,
)
from lowdnn.capi.errors import Call

CALLS: Mapping[str, Call] = {
    **handles.CALLS,
    **backend.CALLS,
    **tensor_descriptors.CALLS,
    **convolution_descriptors.CALLS,
    **convolutions.CALLS,
    **convolution_epilogue.CALLS,
    **operation_descriptors.CALLS,
    **activations.CALLS,
    **elementwise.CALLS,
    **pooling.CALLS,
    **reductions.CALLS,
    **batch_norms.CALLS,
    **norms.CALLS,
    **local_norms.CALLS,
    **dropout.CALLS,
}
