"""The time model's choices for ``conv_im2col_wgmma.cu``: split edges, the variant, and whether pixels are rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.wgmma.im2col_product import Im2colProduct
from lowdnn.engines.gemm import wgmma_model
from lowdnn.engines.gemm.converted_operand import fusion_problem
from lowdnn.engines.gemm.epilogue_reductions import EpilogueReductions
from lowdnn.engines.gemm.wgmma_output import reductions_go_by_map
from lowdnn.engines.gemm.wgmma_product import WgmmaProduct

#: The model's error: the estimate with windows must be shorter by this factor.
_WINDOW_MARGIN = 1.06
#: The model's error for many pixels on a multiprocessor and a resident filter: it does not model that without one all
#: blocks read the same cache lines for each tile.
_RESIDENT_MARGIN = 0.95
#: Pixels for each multiprocessor from which on they count as many.
_MANY_PIXELS = 1024
#: The model's error: the estimate with split edges must be shorter by this factor.
_EDGE_MARGIN = 1.02
#: Most columns of the output for which transposed tiles are tried.
_MAX_TRANSPOSED_COLUMNS = 64


@dataclass(frozen=True)
class Im2colChoice:
    """A product, and its best variant on an architecture."""

    product: Im2colProduct
    arch: ArchSpec

    @cached_property
    def cut(self) -> Im2colChoice:
        """The choice for the product, or for the product with split edges if that looks better."""
        product = self.product.with_split_edges
        if product is None:
            return self
        split = Im2colChoice(product, self.arch)
        return self if self._seconds < _EDGE_MARGIN * split._seconds else split

    @cached_property
    def preferred(self) -> tuple[int, bool]:
        """The index of the best of the product's ``variants``, and whether its tiles are transposed."""
        product = self.product
        if product.has_mapped_operand and product.operands.converted is None:
            return 0, False  # elsewhere the functor loads it, at half the speed
        choices = [
            (place, False)
            for place, variant in enumerate(self._variants)
            if not variant.has_short_windows and (not variant.keeps_filter or variant.keeps_columns)
        ]
        if self._may_be_transposed and self._has_few_columns:
            # The variant that loads least comes first, since the model may estimate equal times.
            choices += [
                (place, True) for place, variant in reversed([*enumerate(self._variants)]) if not variant.keeps_columns
            ]
        elif self._may_be_transposed and wgmma_model.may_transpose(product.product(False)):
            choices.append((0, True))
        if product.operands.converted is not None:
            choices = [(0, product.needs_transposed), *(choice for choice in choices if choice[0])]
        if product.operands.instruction.is_split:
            return 0, product.needs_transposed
        return min(choices, key=lambda choice: self._least_seconds(*choice))

    @property
    def tiled(self) -> WgmmaProduct:
        """The product's preferred variant, as the tiles' model sees it."""
        variant, is_transposed = self.preferred
        return self._variants[variant].product(is_transposed)

    @property
    def slowness(self) -> str:
        """Why reductions or the converted operand are better in a launch of their own, or an empty string."""
        product, converted = self.product, self.product.operands.converted
        if product.reductions:
            _, is_transposed = self.preferred
            if slow := wgmma_model.reduction_problem(product.product(is_transposed), self.arch):
                return slow
        if converted is None:
            return ""
        unfused = Im2colChoice(replace(product, operands=product.operands.without_converted), self.arch)
        return fusion_problem(converted, self._seconds, unfused._seconds, self.arch)

    @property
    def _variants(self) -> tuple[Im2colProduct, ...]:
        # A window's stage sums several taps, which would make promoted sums less precise.
        return self.product.variants[:1] if self.product.is_promoted else self.product.variants

    @property
    def _seconds(self) -> float:
        return self._least_seconds(*self.preferred)

    @property
    def _may_be_transposed(self) -> bool:
        """Whether the default may be transposed: stores by tensor map with reductions are faster untransposed."""
        product, reductions = self.product, self.product.epilogue_reductions
        assert isinstance(reductions, EpilogueReductions), reductions
        return not (product.steps or reductions_go_by_map(reductions, product.dag, product.output, product.rows))

    @property
    def _has_few_columns(self) -> bool:
        return self.product.output.columns <= _MAX_TRANSPOSED_COLUMNS

    def _least_seconds(self, variant: int, is_transposed: bool) -> float:
        """Seconds of a variant of the product, with the margin for the model's error."""
        chosen = self._variants[variant]
        product = chosen.product(is_transposed)
        if chosen.keeps_columns and not _has_several_waves(product, self.arch):
            return inf
        margin = 1.0 if product.window is None else _WINDOW_MARGIN
        if is_transposed and not self._has_few_columns:
            margin *= wgmma_model.TRANSPOSE_MARGIN
        if chosen.keeps_columns:
            margin = _RESIDENT_MARGIN if chosen.pixels >= _MANY_PIXELS * self.arch.sm_count else _WINDOW_MARGIN
        return margin * wgmma_model.least_seconds(product, self.arch)


def _has_several_waves(product: WgmmaProduct, arch: ArchSpec) -> bool:
    """Whether blocks have more than one tile each, for which a resident filter is loaded once."""
    schedule = wgmma_model.best(product, arch).schedule(product)
    return schedule.items > schedule.grid(arch.sm_count)
