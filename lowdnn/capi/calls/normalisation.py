"""Batch normalisation of classic calls as graphs: training, inference, gradients, fused with addition and ReLU.

With the modes' axes (SPATIAL and PER_CHANNEL: one statistic for each channel; PER_ACTIVATION: for each element of a
sample) the training phase computes

    y = activation((x - mean) * inv_variance * scale + bias + z)

where inv_variance = 1 / sqrt(variance + epsilon). The gradient of ReLU comes from y: no space is reserved for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import was_set
from lowdnn.capi.classic_enums import BatchNormOps
from lowdnn.capi.descriptors import ActivationDescriptor, TensorDescriptor
from lowdnn.capi.graphs import compute_type_of
from lowdnn.capi.memory import Address
from lowdnn.enums import ActivationMode, NormFwdPhase, NormMode, PointwiseMode, ReduceTensorOp
from lowdnn.ops.norm import unbiased_factor
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError

#: A descriptor's pointer and the address of the data.
Operand = tuple[Address, Address]


@dataclass(frozen=True)
class Normalisation:
    """One call: its frame, mode and following operations, and the descriptor of scale, bias and statistics.

    is_flat: a sample's elements are seen as channels of one place each, as ``_seen`` finds out for each call.
    """

    frame: Frame
    is_per_activation: bool
    operations: BatchNormOps
    parameters: Address
    activation: Address
    is_flat: bool = False

    def train(
        self, scales: tuple[float, float], x: Operand, z: Operand, y: Operand, scale: Address, bias: Address,
        factor: float, running: tuple[Address, Address], epsilon: float, saved: tuple[Address, Address],
    ) -> None:  # fmt: skip
        """Adds the training phase. ``running`` and ``saved`` may be NULL, both of a pair."""
        norm, builder = self._seen(x, z, y), self.frame.builder
        target, source = norm._descriptor(y[0], "y"), norm._tensor(x, "x")
        self.frame.check_dims(target, norm._descriptor(x[0], "x"), "x")
        self._check_pair("resultRunning", running)
        self._check_pair("resultSave", saved)
        norm._check(target, epsilon)
        weight, shift = norm._parameter(scale), norm._parameter(bias)
        add = norm._add_composed_training if self.is_per_activation and not norm.is_flat else norm._add_training

        def write(result: Tensor) -> None:
            normalised = result if self.operations is BatchNormOps.BN else self._between(target)
            add(source, normalised, (weight, shift), (factor, running), epsilon, saved)
            norm._finish(normalised, z, result)

        builder.store(write, target, y[1], scales, f"{self.frame.name}.y")

    def infer(
        self, scales: tuple[float, float], x: Operand, z: Operand, y: Operand, scale: Address, bias: Address,
        statistics: tuple[Address, Address], epsilon: float,
    ) -> None:  # fmt: skip
        """Adds the inference phase, with given mean and variance."""
        builder, target, source = self.frame.builder, self._descriptor(y[0], "y"), self._tensor(x, "x")
        self.frame.check_dims(target, self._descriptor(x[0], "x"), "x")
        self._check(target, epsilon)
        mean, variance, weight, shift = (self._parameter(address) for address in (*statistics, scale, bias))

        def write(result: Tensor) -> None:
            normalised = result if self.operations is BatchNormOps.BN else self._between(target)
            self._normalise(source, normalised, mean, self._inv_variance(variance, epsilon), (weight, shift))
            self._finish(normalised, z, result)

        builder.store(write, target, y[1], scales, f"{self.frame.name}.y")

    def differentiate(
        self, scales: tuple[float, float, float, float], x: Operand, y: Operand, dy: Operand, dz: Operand,
        dx: Operand, scale: Address, gradients: tuple[Address, Address], epsilon: float,
        saved: tuple[Address, Address],
    ) -> None:  # fmt: skip
        """Adds the gradients. scales: alpha and beta of dx, then those of the parameters' gradients.

        saved: mean and inv_variance; they are computed from x where both are NULL.
        """
        norm, builder = self._seen(x, y, dy, dz, dx), self.frame.builder
        target, source, gradient = norm._descriptor(dx[0], "dx"), norm._tensor(x, "x"), norm._tensor(dy, "dy")
        for argument, operand in (("x", x), ("dy", dy)):
            self.frame.check_dims(target, norm._descriptor(operand[0], argument), argument)
        norm._check(target, epsilon)
        self._check_pair("saved", saved)
        if self.operations is not BatchNormOps.BN:
            gradient = norm._before_activation(gradient, y, dz, target)
        if saved[0]:
            mean, inv_variance = map(norm._parameter, saved)
        else:
            mean, variance = norm._statistics(source)
            inv_variance = norm._inv_variance(variance, epsilon)
        weight, written = norm._parameter(scale), list[Tensor]()
        builder.store(written.append, target, dx[1], scales[:2], f"{self.frame.name}.dx")
        for address, argument in zip(gradients, ("Scale", "Bias"), strict=True):
            where = f"{self.frame.name}.dBn{argument}Result"
            builder.store(written.append, norm._parameters, address, scales[2:], where)
        if self.is_per_activation and not norm.is_flat:
            norm._add_composed_gradients(source, gradient, (mean, inv_variance), weight, *written)
            return
        ports: dict[str, Any] = dict(zip(("dx", "dscale", "dbias"), written, strict=True))
        operation = NormBackward(
            NormMode.BATCH_NORM, source, gradient, mean=mean, inv_variance=inv_variance, scale=weight, **ports
        )
        builder.operations.append(operation)

    def training_bytes(self, x: Address, z: Address, y: Address, address: int) -> int:
        """The workspace of a training call with alpha 1, beta 0, running and saved statistics.

        Its arguments are the tensors' descriptors, and an address that stands for each tensor's address.
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

    def _seen(self, *operands: Operand) -> Normalisation:
        """The normalisation as the engines for channels see it, where that is possible.

        For PER_ACTIVATION each element of a sample is a channel, as far as all tensors are packed in row-major order.
        """
        tensors = [self.frame.state.objects.find(descriptor, TensorDescriptor) for descriptor, _ in operands]
        known = [self.frame.descriptor(self.parameters, "parameters"), *(t for t in tensors if t and t.is_set)]
        is_packed = all(tensor.strides == packed_strides(tensor.dims) for tensor in known)
        return replace(self, is_flat=self.is_per_activation and is_packed)

    def _add_training(
        self, x: Tensor, y: Tensor, parameters: tuple[Tensor, Tensor], running: tuple[float, tuple[Address, Address]],
        epsilon: float, saved: tuple[Address, Address],
    ) -> None:  # fmt: skip
        """Adds the normalisation as one operation. running: the factor and the addresses of mean and variance."""
        statistics = (self._parameter(address) if address else self._row() for address in saved)
        ports: dict[str, Any] = dict(zip(("mean", "inv_variance"), statistics, strict=True))
        factor, addresses = running
        if addresses[0]:
            for name, address in zip(("mean", "var"), addresses, strict=True):
                for direction in ("input", "output"):
                    ports[f"{direction}_running_{name}"] = self._parameter(address)
            ports["exp_avg_factor"] = self._number(factor)
        ports |= dict(zip(("scale", "bias"), parameters, strict=True))
        margin = self._number(epsilon)
        operation = NormForward(NormMode.BATCH_NORM, NormFwdPhase.TRAINING, x, margin, y, **ports)
        self.frame.builder.operations.append(operation)

    def _add_composed_training(
        self, x: Tensor, y: Tensor, parameters: tuple[Tensor, Tensor], running: tuple[float, tuple[Address, Address]],
        epsilon: float, saved: tuple[Address, Address],
    ) -> None:  # fmt: skip
        """Adds what ``_add_training`` adds as reductions and arithmetic, for any strides."""
        builder, (factor, addresses) = self.frame.builder, running
        mean, variance = self._statistics(x)
        root = self._inv_variance(variance, epsilon)
        self._normalise(x, y, mean, root, parameters)
        for value, address in zip((mean, root), saved, strict=True):
            if address:
                builder.pointwise(PointwiseMode.IDENTITY, self._parameter(address), value)
        unbiased = builder.scaled(unbiased_factor(x.dims[0]), variance, variance.data_type)
        for value, address in zip((mean, unbiased), addresses, strict=True):
            if address:
                builder.blend(
                    value, self._parameters, address, (factor, 1 - factor), f"{self.frame.name}.resultRunning*"
                )

    def _add_composed_gradients(
        self, x: Tensor, dy: Tensor, statistics: tuple[Tensor, Tensor], scale: Tensor, dx: Tensor, dscale: Tensor,
        dbias: Tensor,
    ) -> None:  # fmt: skip
        """Adds the gradients as reductions and arithmetic, for any strides:

        dbias = sum(dy)    dscale = sum(dy * xhat)    dx = scale * inv_variance * (dy - (dbias + xhat * dscale) / N)
        """
        builder, (mean, inv_variance) = self.frame.builder, statistics
        mode, whole, row = PointwiseMode, self._like(x), self._row
        xhat = builder.pointwise(mode.MUL, whole(), builder.pointwise(mode.SUB, whole(), x, mean), inv_variance)
        sums = []
        for terms, target in ((dy, dbias), (builder.pointwise(mode.MUL, whole(), dy, xhat), dscale)):
            sums.append(builder.reduced(terms, row(), ReduceTensorOp.ADD))
            builder.pointwise(mode.IDENTITY, target, sums[-1])
        shares = builder.pointwise(mode.ADD, whole(), builder.pointwise(mode.MUL, whole(), xhat, sums[1]), sums[0])
        centred = builder.pointwise(mode.SUB, whole(), dy, shares, alphas=(1.0, 1 / x.dims[0]))
        builder.pointwise(mode.MUL, dx, centred, builder.pointwise(mode.MUL, row(), scale, inv_variance))

    def _normalise(
        self, x: Tensor, y: Tensor, mean: Tensor, inv_variance: Tensor, parameters: tuple[Tensor, Tensor]
    ) -> None:
        """Adds y = (x - mean) * inv_variance * scale + bias."""
        builder, whole, (weight, shift) = self.frame.builder, self._like(x), parameters
        slope = builder.pointwise(PointwiseMode.MUL, self._row(), inv_variance, weight)
        centred = builder.pointwise(PointwiseMode.SUB, whole(), x, mean)
        scaled = builder.pointwise(PointwiseMode.MUL, whole(), centred, slope)
        builder.pointwise(PointwiseMode.ADD, y, scaled, shift)

    def _before_activation(self, dy: Tensor, y: Operand, dz: Operand, target: TensorDescriptor) -> Tensor:
        """The gradient with respect to the ReLU's input, which is also the gradient of z."""
        builder = self.frame.builder
        self._check_activation()
        values = self._tensor(y, "y")
        if self.operations is BatchNormOps.BN_ADD_ACTIVATION:
            return builder.pointwise(PointwiseMode.RELU_BWD, self._tensor(dz, "dz"), dy, values)
        return builder.pointwise(PointwiseMode.RELU_BWD, self._between(target), dy, values)

    def _finish(self, normalised: Tensor, z: Operand, y: Tensor) -> None:
        """Adds the operations after the normalisation: the addition of z and the ReLU."""
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
        """The descriptor as the normalisation sees it."""
        found = self.frame.descriptor(address, argument)
        if not self.is_flat:
            return found
        dims = (found.dims[0], prod(found.dims[1:]), *(1,) * (len(found.dims) - 2))
        return TensorDescriptor(found.data_type, dims, packed_strides(dims))

    def _tensor(self, operand: Operand, argument: str) -> Tensor:
        descriptor = self._descriptor(operand[0], argument)
        return self.frame.builder.tensor(descriptor, operand[1], f"{self.frame.name}.{argument}")

    def _parameter(self, address: Address) -> Tensor:
        return self.frame.builder.tensor(self._parameters, address, f"{self.frame.name}.parameters and statistics")

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the batch."""
        builder, whole = self.frame.builder, self._like(x)
        mean = builder.reduced(x, self._row(), ReduceTensorOp.AVG)
        centred = builder.pointwise(PointwiseMode.SUB, whole(), x, mean)
        square = builder.pointwise(PointwiseMode.MUL, whole(), centred, centred)
        return mean, builder.reduced(square, self._row(), ReduceTensorOp.AVG)

    def _inv_variance(self, variance: Tensor, epsilon: float) -> Tensor:
        """1 / sqrt(variance + epsilon)."""
        raised = self.frame.builder.pointwise(PointwiseMode.ADD, self._row(), variance, self._number(epsilon))
        return self.frame.builder.pointwise(PointwiseMode.RSQRT, self._row(), raised)

    def _row(self) -> Tensor:
        """A virtual tensor with one element for each channel."""
        found = self._parameters
        return self.frame.builder.virtual(found.dims, compute_type_of(found.data_type))

    def _number(self, value: float) -> Tensor:
        found = self._parameters
        return self.frame.builder.value(value, len(found.dims), compute_type_of(found.data_type))

    def _between(self, of: TensorDescriptor) -> Tensor:
        return self.frame.builder.virtual(of.dims, compute_type_of(of.data_type))

    def _like(self, x: Tensor) -> Callable[[], Tensor]:
        """Returns a function that makes virtual tensors with the dims of ``x``."""
        return lambda: self.frame.builder.virtual(x.dims, compute_type_of(x.data_type))

    def _check(self, target: TensorDescriptor, epsilon: float) -> None:
        """Checks the parameters' extents and epsilon. ``target``: of y or dx, as the normalisation sees it."""
        rest = target.dims[2:] if self.is_per_activation else (1,) * len(target.dims[2:])
        expected, found = (1, target.dims[1], *rest), self._parameters.dims
        if found != expected:
            where = f"{self.frame.name}.bnScaleBiasMeanVarDesc.dims"
            raise ShapeMismatchError.at(where, expected=list(expected), got=list(found))
        if not epsilon >= 0:
            raise BadParamError.at(f"{self.frame.name}.epsilon", expected="0 or more", got=epsilon)

    def _check_pair(self, argument: str, pair: tuple[Address, Address]) -> None:
        if bool(pair[0]) != bool(pair[1]):
            raise BadParamError.at(f"{self.frame.name}.{argument}*", expected="two pointers or NULL twice", got="one")
