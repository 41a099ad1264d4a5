"""Every call by the name of its C function."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.capi.calls import (
    backend,
    convolution_descriptors,
    handles,
    operation_descriptors,
    tensor_descriptors,
)
from lowdnn.capi.errors import Call

CALLS: Mapping[str, Call] = {
    **handles.CALLS,
    **backend.CALLS,
    **tensor_descriptors.CALLS,
    **convolution_descriptors.CALLS,
    **operation_descriptors.CALLS,
}
