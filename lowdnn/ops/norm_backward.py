"""The gradients of a norm (``ops.norm_forward``). With xhat = (x - mean) * inv_variance and g = dy * scale,

    dx = inv_variance * (g - average(g) - xhat * average(g * xhat))        dscale = sum of dy * xhat
    dbias = sum of dy

with averages over the normalised axes and sums over those along which the scale repeats. RMS_NORM, which has no mean,
has no average(g) either.

BATCH_NORM may have peers (``ops.peer_stats``), as the forward operation does: averages are then over the whole batch.
dscale and dbias are this rank's own sums, which data parallelism adds up as it does other gradients.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, NormMode
from lowdnn.ops.base import Values, inputs_of, outputs_of
from lowdnn.ops.norm import NormShape, average, check_dims, check_float, check_scalar, compute_type_of
from lowdnn.ops.peer_stats import check_peer_stats, refuse_peers
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_inputs, tensor_output
from lowdnn.status import NotSupportedError


@dataclass(frozen=True)
class NormBackward:
    """See the module's docstring. ``epsilon`` is not used: it is in inv_variance."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_NORM_BACKWARD
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    mode: NormMode = attribute(AttributeName.OPERATION_NORM_BWD_MODE, AttributeType.NORM_MODE)
    x: Tensor = tensor_input(AttributeName.OPERATION_NORM_BWD_XDESC)
    dy: Tensor = tensor_input(AttributeName.OPERATION_NORM_BWD_DYDESC)
    dx: Tensor = tensor_output(AttributeName.OPERATION_NORM_BWD_DXDESC)
    mean: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_BWD_MEAN_DESC, default=None)
    inv_variance: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_BWD_INV_VARIANCE_DESC, default=None)
    scale: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_BWD_SCALE_DESC, default=None)
    epsilon: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_BWD_EPSILON_DESC, default=None)
    dscale: Tensor | None = tensor_output(AttributeName.OPERATION_NORM_BWD_DSCALE_DESC, default=None)
    dbias: Tensor | None = tensor_output(AttributeName.OPERATION_NORM_BWD_DBIAS_DESC, default=None)
    peer_stats: tuple[Tensor, ...] = tensor_inputs(AttributeName.OPERATION_NORM_BWD_PEER_STAT_DESCS, is_optional=True)

    def __post_init__(self) -> None:
        where = "norm_backward"
        if self.inv_variance is None or (self.mean is None) != (self.mode is NormMode.RMS_NORM):
            rule = "inv_variance alone for RMS_NORM" if self.mode is NormMode.RMS_NORM else "both"
            given = [tensor.label for tensor in (self.mean, self.inv_variance) if tensor is not None]
            raise NotSupportedError.at(f"{where}.mean, inv_variance", expected=rule, got=given or "none")
        self.shape.check(where)
        check_dims(where, self.x.dims, {"dy": self.dy, "dx": self.dx})
        parameters = {"scale": self.scale, "dscale": self.dscale, "dbias": self.dbias}
        check_dims(where, self.shape.scale_dims or (), parameters)
        check_dims(where, self.shape.stats_dims, {"mean": self.mean, "inv_variance": self.inv_variance})
        check_float(where, inputs_of(self) | outputs_of(self))
        if self.epsilon is not None:
            check_scalar(f"{where}.epsilon", self.epsilon)
        check_peer_stats(where, self.peer_stats, self.mode, self.x.dims[1], self.compute_type)

    @property
    def shape(self) -> NormShape:
        parameter = self.scale or self.dscale or self.dbias
        groups = 0
        if self.mode is NormMode.GROUP_NORM and self.inv_variance is not None and self.inv_variance.rank > 1:
            groups = self.inv_variance.dims[1]
        return NormShape(self.mode, self.x.dims, None if parameter is None else parameter.dims, groups)

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        return 12 * self.x.element_count

    def without(self, ports: Collection[str]) -> NormBackward:
        """The operation without dscale and dbias.

        One tensor with the dims of a scale stays, since those dims say what is normalised.
        """
        unread = [port for port in ("dbias", "dscale") if port in ports]
        if self.scale is None and {"dscale", "dbias"} & outputs_of(self).keys() <= set(unread):
            unread = unread[:-1]
        absent: dict[str, Any] = dict.fromkeys(unread)
        return replace(self, **absent)

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        refuse_peers(self.peer_stats)
        shape = self.shape
        stats_dims = shape.split(shape.stats_dims)

        def split(values: NDArray[Any]) -> NDArray[Any]:
            return values.reshape(shape.split(values.shape))

        with np.errstate(all="ignore"):
            inv_variance = inputs["inv_variance"].reshape(stats_dims)
            mean = inputs["mean"].reshape(stats_dims) if "mean" in inputs else np.zeros(())
            xhat = (split(inputs["x"]) - mean) * inv_variance
            g = split(inputs["dy"] * inputs.get("scale", 1.0))
            average_g = 0 if self.mode is NormMode.RMS_NORM else average(g, shape.axes)
            dx = inv_variance * (g - average_g - xhat * average(g * xhat, shape.axes))
            results = {"dx": dx.reshape(self.x.dims)}
            if shape.scale_dims is not None:
                repeated = tuple(axis for axis, extent in enumerate(shape.scale_dims) if extent == 1)
                terms = xhat.reshape(self.x.dims) * inputs["dy"]
                results["dscale"] = terms.sum(repeated, keepdims=True)
                results["dbias"] = inputs["dy"].sum(repeated, keepdims=True)
        return {port: results[port] for port in outputs_of(self)}
