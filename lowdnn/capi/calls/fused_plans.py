"""Plans of fused operations around a convolution and batch normalisation. With a scale and a bias for each channel

    SCALE_BIAS_ACTIVATION_CONV_BNSTATS   y = convolution(activation(x * eqscale + eqbias), w), and y's sums and squares
    SCALE_BIAS_ACTIVATION_WGRAD          dw = the filter's gradient of the same convolution
    BN_FINALIZE_STATISTICS_TRAINING      eqscale and eqbias, saved and running statistics, from sums and squares
    BN_FINALIZE_STATISTICS_INFERENCE     eqscale and eqbias from running statistics
    CONV_SCALE_BIAS_ADD_ACTIVATION       y = activation(convolution(x, w) * eqscale + eqbias + z)

where a placeholder that is NULL leaves its tensor out. The operations with bit masks are refused: cuDNN does not say
where the bits lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.activations import activate
from lowdnn.capi.calls.convolutions import geometry
from lowdnn.capi.classic_enums import FusedOps
from lowdnn.capi.classic_enums import FusedOpsConstParamLabel as Const
from lowdnn.capi.classic_enums import FusedOpsVariantParamLabel as Variant
from lowdnn.capi.descriptors import ActivationDescriptor, ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.fused_packs import ConstPack, FusedPlan, VariantPack
from lowdnn.capi.graphs import Builder, compute_type_of
from lowdnn.capi.memory import Address, checked, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import BnFinalizeStatsMode, DataType, PointwiseMode
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import BadParamError, NotSupportedError

#: A stand-in address with the largest alignment that an engine needs, for plans that are made without addresses.
_ALIGNED = 256


def make_plan(state: State, handle: Address, plan: Address, constants: Address, size: Address) -> None:
    """Makes the plan and writes its workspace size. Raises NotSupportedError for operations with bit masks and those
    that no engine computes."""
    where = "cudnnMakeFusedOpsPlan"
    user = state.objects.get(handle, Handle, f"{where}.handle")
    old = state.objects.get(plan, FusedPlan, f"{where}.plan")
    given = state.objects.get(constants, ConstPack, f"{where}.constPack")
    _check_same(f"{where}.constPack.ops", old.operation, given.operation)
    checked(size, f"{where}.workspaceSizeInBytes")
    planned = state.graphs.planned(user, _Fused(given, None, where).built())
    needed = size_anywhere(planned.candidate(0, where).plan.workspace_bytes)
    state.objects.replace(checked(plan, where), FusedPlan(old.operation, given, needed))
    write_outputs((size, "Q", needed, f"{where}.workspaceSizeInBytes"))


def execute(state: State, handle: Address, plan: Address, variants: Address) -> None:
    where = "cudnnFusedOpsExecute"
    user = state.objects.get(handle, Handle, f"{where}.handle")
    made = state.objects.get(plan, FusedPlan, f"{where}.plan")
    given = state.objects.get(variants, VariantPack, f"{where}.varPack")
    _check_same(f"{where}.varPack.ops", made.operation, given.operation)
    if made.constants is None:
        raise BadParamError.at(f"{where}.plan", expected="a plan that was made", got="one that was only created")
    builder = _Fused(made.constants, given, where).built()
    address = int(given.values.get(Variant.PTR_WORKSPACE, 0))
    size = int(given.values.get(Variant.SCALAR_SIZE_T_WORKSPACE_SIZE_IN_BYTES, 0))
    state.graphs.run(user, builder, where, (address, size), told_bytes=lambda: made.workspace_bytes)


@dataclass(frozen=True)
class _Fused:
    """The graph of one operation. variants: None where a plan is made, without addresses and numbers."""

    constants: ConstPack
    variants: VariantPack | None
    where: str

    def built(self) -> Builder:
        build, builder = _GRAPHS.get(self.constants.operation), Builder()
        if build is None:
            raise NotSupportedError.at(
                f"{self.where}.ops", expected="an operation without a bit mask", got=self.constants.operation.name
            )
        build(self, builder)
        return builder

    def forward(self, builder: Builder) -> None:
        """SCALE_BIAS_ACTIVATION_CONV_BNSTATS."""
        image, filters = self._image(builder), self._tensor(builder, Const.WDESC, Variant.PTR_WDATA)
        y = self._result(builder, Const.YDESC, Variant.PTR_YDATA)
        builder.operations.append(ConvolutionForward(self._geometry, image, filters, y))
        has_sums = [self.constants.has(label) for label in (Const.YSUM_PLACEHOLDER, Const.YSQSUM_PLACEHOLDER)]
        if any(has_sums):
            dims = (1, y.dims[1], *(1,) * (y.rank - 2))
            compute = compute_type_of(y.data_type)
            sums = (
                self._result(builder, Const.YSTATS_DESC, label) if has_sum else builder.virtual(dims, compute)
                for label, has_sum in zip((Variant.PTR_YSUM, Variant.PTR_YSQSUM), has_sums, strict=True)
            )
            total, squares = sums
            builder.operations.append(GenStats(y, total, squares, compute))

    def filter_gradient(self, builder: Builder) -> None:
        """SCALE_BIAS_ACTIVATION_WGRAD."""
        image, response = self._image(builder), self._tensor(builder, Const.DYDESC, Variant.PTR_DYDATA)
        gradient = self._result(builder, Const.DWDESC, Variant.PTR_DWDATA)
        builder.operations.append(ConvolutionBackwardFilter(self._geometry, image, response, gradient))

    def finalize(self, builder: Builder) -> None:
        """BN_FINALIZE_STATISTICS_TRAINING."""
        rows, has = Const.BN_SCALEBIAS_MEANVAR_DESC, self.constants.has
        sums = [self._tensor(builder, Const.YSTATS_DESC, label) for label in (Variant.PTR_YSUM, Variant.PTR_YSQSUM)]
        rank, compute = sums[0].rank, compute_type_of(sums[0].data_type)
        weight, bias = (self._tensor(builder, rows, label) for label in (Variant.PTR_BN_SCALE, Variant.PTR_BN_BIAS))
        results = {
            port: self._result(builder, desc, label) if has(placeholder) else builder.virtual(sums[0].dims, compute)
            for port, desc, label, placeholder in (
                ("mean", rows, Variant.PTR_BN_SAVED_MEAN, Const.BN_SAVED_MEAN_PLACEHOLDER),
                ("inv_std", rows, Variant.PTR_BN_SAVED_INVSTD, Const.BN_SAVED_INVSTD_PLACEHOLDER),
                ("eq_scale", Const.BN_EQSCALEBIAS_DESC, Variant.PTR_BN_EQSCALE, Const.BN_EQSCALE_PLACEHOLDER),
                ("eq_bias", Const.BN_EQSCALEBIAS_DESC, Variant.PTR_BN_EQBIAS, Const.BN_EQBIAS_PLACEHOLDER),
            )
        }
        if has(Const.BN_RUNNING_MEAN_PLACEHOLDER):
            for name, label in (("mean", Variant.PTR_BN_RUNNING_MEAN), ("var", Variant.PTR_BN_RUNNING_VAR)):
                results[f"input_running_{name}"] = self._tensor(builder, rows, label)
                results[f"output_running_{name}"] = self._result(builder, rows, label)
            results["exp_avg_factor"] = self._number(builder, Variant.SCALAR_DOUBLE_BN_EXP_AVG_FACTOR, rank)
        count = self._number(builder, Variant.SCALAR_INT64_T_BN_ACCUMULATION_COUNT, rank)
        epsilon = self._number(builder, Variant.SCALAR_DOUBLE_BN_EPSILON, rank)
        mode = BnFinalizeStatsMode.TRAINING
        operation = BnFinalize(mode, compute, sums[0], sums[1], weight, bias, count, epsilon, **results)
        builder.operations.append(operation)

    def finalize_inference(self, builder: Builder) -> None:
        """BN_FINALIZE_STATISTICS_INFERENCE.

        eqscale = scale / sqrt(variance + epsilon)        eqbias = bias - mean * eqscale
        """
        rows, mode = Const.BN_SCALEBIAS_MEANVAR_DESC, PointwiseMode
        labels = (Variant.PTR_BN_SCALE, Variant.PTR_BN_BIAS, Variant.PTR_BN_RUNNING_MEAN, Variant.PTR_BN_RUNNING_VAR)
        weight, bias, mean, variance = (self._tensor(builder, rows, label) for label in labels)

        def row() -> Tensor:
            return builder.virtual(weight.dims, compute_type_of(weight.data_type))

        epsilon = self._number(builder, Variant.SCALAR_DOUBLE_BN_EPSILON, weight.rank)
        root = builder.pointwise(mode.RSQRT, row(), builder.pointwise(mode.ADD, row(), variance, epsilon))
        slope = builder.pointwise(mode.MUL, row(), weight, root)
        builder.pointwise(
            mode.IDENTITY, self._result(builder, Const.BN_EQSCALEBIAS_DESC, Variant.PTR_BN_EQSCALE), slope
        )
        shift = self._result(builder, Const.BN_EQSCALEBIAS_DESC, Variant.PTR_BN_EQBIAS)
        builder.pointwise(mode.SUB, shift, bias, builder.pointwise(mode.MUL, row(), mean, slope))

    def convolution(self, builder: Builder) -> None:
        """CONV_SCALE_BIAS_ADD_ACTIVATION."""
        image, filters = (
            self._tensor(builder, Const.XDESC, Variant.PTR_XDATA),
            self._tensor(builder, Const.WDESC, Variant.PTR_WDATA),
        )
        y = self._result(builder, Const.YDESC, Variant.PTR_YDATA)
        compute = compute_type_of(y.data_type)
        product = builder.virtual(y.dims, compute)
        builder.operations.append(ConvolutionForward(self._geometry, image, filters, product))
        total = self._scaled(builder, product, compute)
        if self.constants.has(Const.ZDATA_PLACEHOLDER):
            z = self._tensor(builder, Const.ZDESC, Variant.PTR_ZDATA)
            total = builder.pointwise(PointwiseMode.ADD, builder.virtual(y.dims, compute), total, z)
        self._activate(builder, total, y)

    @property
    def _geometry(self) -> Convolution:
        return geometry(self.constants.get(Const.CONV_DESC, ConvolutionDescriptor, self.where))

    def _image(self, builder: Builder) -> Tensor:
        """activation(x * eqscale + eqbias), rounded to the type of x."""
        x = self._tensor(builder, Const.XDESC, Variant.PTR_XDATA)
        scaled = self._scaled(builder, x, compute_type_of(x.data_type))
        if scaled is x and not self.constants.has(Const.ACTIVATION_DESC):
            return x
        image = builder.virtual(x.dims, x.data_type)
        self._activate(builder, scaled, image)
        return image

    def _scaled(self, builder: Builder, x: Tensor, compute: DataType) -> Tensor:
        """x * eqscale + eqbias, as far as their placeholders are not NULL."""
        for mode, label, placeholder in (
            (PointwiseMode.MUL, Variant.PTR_BN_EQSCALE, Const.BN_EQSCALE_PLACEHOLDER),
            (PointwiseMode.ADD, Variant.PTR_BN_EQBIAS, Const.BN_EQBIAS_PLACEHOLDER),
        ):
            if self.constants.has(placeholder):
                row = self._tensor(builder, Const.BN_EQSCALEBIAS_DESC, label)
                x = builder.pointwise(mode, builder.virtual(x.dims, compute), x, row)
        return x

    def _activate(self, builder: Builder, x: Tensor, y: Tensor) -> None:
        if self.constants.has(Const.ACTIVATION_DESC):
            activate(builder, self.constants.get(Const.ACTIVATION_DESC, ActivationDescriptor, self.where), x, y)
        else:
            builder.pointwise(PointwiseMode.IDENTITY, y, x)

    def _tensor(self, builder: Builder, descriptor: Const, data: Variant) -> Tensor:
        return builder.tensor(self._descriptor(descriptor), self._address(data), f"{self.where}.{data.name}")

    def _result(self, builder: Builder, descriptor: Const, data: Variant) -> Tensor:
        return builder.result(self._descriptor(descriptor), self._address(data), f"{self.where}.{data.name}")

    def _descriptor(self, label: Const) -> TensorDescriptor | FilterDescriptor:
        if label in (Const.WDESC, Const.DWDESC):
            return self.constants.get(label, FilterDescriptor, self.where)
        return self.constants.get(label, TensorDescriptor, self.where)

    def _address(self, label: Variant) -> Address:
        return _ALIGNED if self.variants is None else int(self.variants.values.get(label, 0))

    def _number(self, builder: Builder, label: Variant, rank: int) -> Tensor:
        if self.variants is None:
            return builder.value(1.0, rank, DataType.DOUBLE)
        found = self.variants.values.get(label)
        if found is None:
            raise BadParamError.at(f"{self.where}.{label.name}", expected="a number that was set", got="none")
        return builder.value(float(found), rank, DataType.DOUBLE)


_GRAPHS: Mapping[FusedOps, Callable[[_Fused, Builder], None]] = {
    FusedOps.SCALE_BIAS_ACTIVATION_CONV_BNSTATS: _Fused.forward,
    FusedOps.SCALE_BIAS_ACTIVATION_WGRAD: _Fused.filter_gradient,
    FusedOps.BN_FINALIZE_STATISTICS_TRAINING: _Fused.finalize,
    FusedOps.BN_FINALIZE_STATISTICS_INFERENCE: _Fused.finalize_inference,
    FusedOps.CONV_SCALE_BIAS_ADD_ACTIVATION: _Fused.convolution,
}


def _check_same(where: str, expected: FusedOps, got: FusedOps) -> None:
    if expected is not got:
        raise BadParamError.at(where, expected=expected.name, got=got.name)


CALLS: Mapping[str, Call] = {"cudnnMakeFusedOpsPlan": make_plan, "cudnnFusedOpsExecute": execute}
