"""Batch normalisation of classic calls as graphs: training, inference, gradients, fused with addition and ReLU.

With the modes' axes (SPATIAL and PER_CHANNEL: one statistic for each channel; PER_ACTIVATION: for each element of a
sample) the training phase computes

    y = activation((x - mean) * inv_variance * scale + bias + z)

where inv_variance = 1 / sqrt(variance + epsilon). The gradient of ReLU comes from y: no space is reserved for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import was_set
from lowdnn.capi.classic_enums import BatchNormOps
from lowdnn.capi.descriptors import ActivationDescriptor, TensorDescriptor, packed_strides
from lowdnn.capi.graphs import compute_type_of
from lowdnn.capi.memory import Address
from lowdnn.enums import ActivationMode, NormFwdPhase, NormMode, PointwiseMode, ReduceTensorOp, TensorFormat
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError, UnsupportedLayoutError

#: A descriptor's pointer and the address of the data.
Operand = tuple[Address, Address]


@dataclass(frozen=True)
class Normalisation:
    """One call: its frame, mode and following operations, and the descriptor of scale, bias and statistics."""

    frame: Frame
    is_per_activation: bool
    operations: BatchNormOps
    parameters: Address
    activation: Address

    def train(
        self, scales: tuple[float, float], x: Operand, z: Operand, y: Operand, scale: Address, bias: Address,
        factor: float, running: tuple[Address, Address], epsilon: float, saved: tuple[Address, Address],
    ) -> None:  # fmt: skip
        """Adds the training phase. ``running`` and ``saved`` may be NULL, both of a pair."""
        builder, target = self.frame.builder, self._descriptor(y[0], "y")
        source = self._tensor(x, "x")
        self.frame.check_dims(target, self._descriptor(x[0], "x"), "x")
        self._check_pair("resultRunning", running)
        self._check_pair("resultSave", saved)
        ports: dict[str, Any] = dict(
            zip(("mean", "inv_variance"), (self._statistic(address) for address in saved), strict=True)
        )
        if running[0]:
            for name, address in zip(("mean", "var"), running, strict=True):
                for direction in ("input", "output"):
                    ports[f"{direction}_running_{name}"] = self._parameter(address)
            ports["exp_avg_factor"] = self._number(factor)
        ports |= {"scale": self._parameter(scale), "bias": self._parameter(bias)}
        margin = self._number(epsilon)

        def write(result: Tensor) -> None:
            normalised = result if self.operations is BatchNormOps.BN else self._between(target)
            builder.operations.append(
                NormForward(NormMode.BATCH_NORM, NormFwdPhase.TRAINING, source, margin, normalised, **ports)
            )
            self._finish(normalised, z, result)

        builder.store(write, target, y[1], scales, f"{self.frame.name}.y")

    def infer(
        self, scales: tuple[float, float], x: Operand, z: Operand, y: Operand, scale: Address, bias: Address,
        statistics: tuple[Address, Address], epsilon: float,
    ) -> None:  # fmt: skip
        """Adds the inference phase, with given mean and variance."""
        builder, target = self.frame.builder, self._descriptor(y[0], "y")
        source = self._tensor(x, "x")
        self.frame.check_dims(target, self._descriptor(x[0], "x"), "x")
        mean, variance = (self._parameter(address) for address in statistics)
        weight, shift = self._parameter(scale), self._parameter(bias)

        def write(result: Tensor) -> None:
            normalised = result if self.operations is BatchNormOps.BN else self._between(target)
            root = self._inv_variance(variance, epsilon)
            slope = builder.pointwise(PointwiseMode.MUL, self._row(), root, weight)
            centred = builder.pointwise(PointwiseMode.SUB, self._between(target), source, mean)
            scaled = builder.pointwise(PointwiseMode.MUL, self._between(target), centred, slope)
            builder.pointwise(PointwiseMode.ADD, normalised, scaled, shift)
            self._finish(normalised, z, result)

        builder.store(write, target, y[1], scales, f"{self.frame.name}.y")

    def differentiate(
        self, scales: tuple[float, float, float, float], x: Operand, y: Operand, dy: Operand, dz: Operand,
        dx: Operand, scale: Address, gradients: tuple[Address, Address], epsilon: float,
        saved: tuple[Address, Address],
    ) -> None:  # fmt: skip
        """Adds the gradients. scales: alpha and beta of dx, then those of the parameters' gradients.

        saved: mean and inv_variance; both are computed from x where one is NULL.
        """
        builder, target = self.frame.builder, self._descriptor(dx[0], "dx")
        source, gradient = self._tensor(x, "x"), self._tensor(dy, "dy")
        for argument, operand in (("x", x), ("dy", dy)):
            self.frame.check_dims(target, self._descriptor(operand[0], argument), argument)
        if self.operations is not BatchNormOps.BN:
            gradient = self._before_activation(gradient, y, dz, target)
        mean, inv_variance = map(self._parameter, saved) if all(saved) else self._statistics(source, epsilon)
        weight, parameters = self._parameter(scale), self._parameters
        written: list[Tensor] = []
        builder.store(written.append, target, dx[1], scales[:2], f"{self.frame.name}.dx")
        for address, argument in zip(gradients, ("Scale", "Bias"), strict=True):
            where = f"{self.frame.name}.dBn{argument}Result"
            builder.store(written.append, parameters, address, scales[2:], where)
        ports = dict(zip(("dx", "dscale", "dbias"), written, strict=True))
        operation = NormBackward(
            NormMode.BATCH_NORM, source, gradient, mean=mean, inv_variance=inv_variance, scale=weight, **ports
        )
        builder.operations.append(operation)

    def training_bytes(self, x: Address, z: Address, y: Address, address: int) -> int:
        """The workspace of a training call with alpha 1, beta 0, running and saved statistics.

        Descriptors of the tensors, and an address that stands for all of theirs.
        """
        both = (address, address)
        self.train((1.0, 0.0), (x, address), (z, address), (y, address), address, address, 1.0, both, 1.0, both)
        return self.frame.workspace_bytes()

    def gradient_bytes(self, descriptors: tuple[Address, ...], address: int) -> int:
        """The workspace of the gradients with alpha 1 and beta 0. Descriptors of x, y, dy, dz and dx."""
        both = (address, address)
        x, y, dy, dz, dx = ((descriptor, address) for descriptor in descriptors)
        self.differentiate((1.0, 0.0, 1.0, 0.0), x, y, dy, dz, dx, address, both, 1.0, both)
        return self.frame.workspace_bytes()

    @property
    def _parameters(self) -> TensorDescriptor:
        return self._descriptor(self.parameters, "bnScaleBiasMeanVar")

    def _before_activation(self, dy: Tensor, y: Operand, dz: Operand, target: TensorDescriptor) -> Tensor:
        """The gradient in front of the ReLU, which is that of z, too."""
        builder = self.frame.builder
        self._check_activation()
        values = self._tensor(y, "y")
        if self.operations is BatchNormOps.BN_ADD_ACTIVATION:
            return builder.pointwise(PointwiseMode.RELU_BWD, self._tensor(dz, "dz"), dy, values)
        return builder.pointwise(PointwiseMode.RELU_BWD, self._between(target), dy, values)

    def _finish(self, normalised: Tensor, z: Operand, y: Tensor) -> None:
        """Adds what follows the normalisation."""
        if self.operations is BatchNormOps.BN:
            return
        self._check_activation()
        builder = self.frame.builder
        if self.operations is BatchNormOps.BN_ADD_ACTIVATION:
            between = builder.virtual(normalised.dims, normalised.data_type)
            normalised = builder.pointwise(PointwiseMode.ADD, between, normalised, self._tensor(z, "z"))
        builder.pointwise(PointwiseMode.RELU_FWD, y, normalised)

    def _check_activation(self) -> None:
        where = f"{self.frame.name}.activationDesc"
        found = was_set(self.frame.state, self.activation, ActivationDescriptor, where)
        if found.mode is not ActivationMode.RELU:
            raise NotSupportedError.at(f"{where}.mode", expected="RELU", got=found.mode.name)

    def _descriptor(self, address: Address, argument: str) -> TensorDescriptor:
        """The descriptor as the normalisation sees it; PER_ACTIVATION takes each element of a sample for a channel."""
        found = self.frame.descriptor(address, argument)
        if not self.is_per_activation:
            return found
        where = f"{self.frame.name}.{argument}Desc.strides"
        if found.strides != packed_strides(where, TensorFormat.NCHW, found.dims):
            raise UnsupportedLayoutError.at(where, expected="packed NCHW for PER_ACTIVATION", got=list(found.strides))
        dims = (found.dims[0], prod(found.dims[1:]), *(1,) * (len(found.dims) - 2))
        return TensorDescriptor(found.data_type, dims, packed_strides(where, TensorFormat.NCHW, dims))

    def _tensor(self, operand: Operand, argument: str) -> Tensor:
        descriptor = self._descriptor(operand[0], argument)
        return self.frame.builder.tensor(descriptor, operand[1], f"{self.frame.name}.{argument}")

    def _parameter(self, address: Address) -> Tensor:
        found = self._parameters
        if found.dims[0] != 1 or any(extent != 1 for extent in found.dims[2:]):
            where = f"{self.frame.name}.bnScaleBiasMeanVarDesc.dims"
            raise ShapeMismatchError.at(where, expected="one element for each channel", got=list(found.dims))
        return self.frame.builder.tensor(found, address, f"{self.frame.name}.parameters and statistics")

    def _statistic(self, address: Address) -> Tensor:
        return self._parameter(address) if address else self._row()

    def _statistics(self, x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """Mean and inv_variance of the batch."""
        builder, width = self.frame.builder, compute_type_of(x.data_type)
        mean, variance = self._row(), self._row()
        builder.reduced(x, mean, ReduceTensorOp.AVG)
        centred = builder.pointwise(PointwiseMode.SUB, builder.virtual(x.dims, width), x, mean)
        square = builder.pointwise(PointwiseMode.MUL, builder.virtual(x.dims, width), centred, centred)
        builder.reduced(square, variance, ReduceTensorOp.AVG)
        return mean, self._inv_variance(variance, epsilon)

    def _inv_variance(self, variance: Tensor, epsilon: float) -> Tensor:
        """1 / sqrt(variance + epsilon)."""
        raised = self.frame.builder.pointwise(PointwiseMode.ADD, self._row(), variance, self._number(epsilon))
        return self.frame.builder.pointwise(PointwiseMode.RSQRT, self._row(), raised)

    def _row(self) -> Tensor:
        """One element for each channel, in registers."""
        found = self._parameters
        return self.frame.builder.virtual(found.dims, compute_type_of(found.data_type))

    def _number(self, value: float) -> Tensor:
        found = self._parameters
        return self.frame.builder.value(value, len(found.dims), compute_type_of(found.data_type))

    def _between(self, of: TensorDescriptor) -> Tensor:
        return self.frame.builder.virtual(of.dims, compute_type_of(of.data_type))

    def _check_pair(self, argument: str, pair: tuple[Address, Address]) -> None:
        if bool(pair[0]) != bool(pair[1]):
            raise BadParamError.at(f"{self.frame.name}.{argument}*", expected="two pointers or NULL twice", got="one")
