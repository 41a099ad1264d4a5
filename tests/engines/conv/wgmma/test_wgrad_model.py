"""The choice of a tile for filter gradients: tiles that the search skips are not faster than the one that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.engines.conv.wgmma import wgrad_model
from lowdnn.engines.conv.wgmma.conv_wgrad_wgmma import ConvWgradWgmma
from lowdnn.engines.conv.wgmma.wgrad_parts import bound_seconds, splittings
from lowdnn.engines.conv.wgmma.wgrad_product import WgradProduct
from lowdnn.engines.conv.wgmma.wgrad_times import Extents, StageTraits
from lowdnn.engines.gemm.wgmma_tiles import WgmmaTile
from tests.support.data import fresh_seed

_CASES = 60


def test_the_least_of_all_candidates_is_found() -> None:
    """Tiles that their bound rules out are timed here as well."""
    random = Random(fresh_seed())
    for _ in range(_CASES):
        case = _drawn(random)
        product = ConvWgradWgmma().accepted(parse_case(case).graph(), SM_90A).product
        arch = SM_90A.with_sm_count(random.choice((132, 114, 20)))
        found = wgrad_model.best(product, arch)
        cost, seconds, tile, splits = min(_all_candidates(product, arch), key=lambda candidate: candidate[0])
        assert (found.tile, found.splits) == (tile, splits), case
        assert wgrad_model.least_seconds(product, arch) == seconds, case
        assert cost >= seconds


def _all_candidates(product: WgradProduct, arch: ArchSpec) -> Iterator[tuple[float, float, WgmmaTile, tuple[int, ...]]]:
    """(cost, seconds, tile, splits) of every candidate, in the order that decides ties."""
    for cut in filter(None, (product, product.with_windows, product.with_valid_only)):
        extents = Extents.of(cut)
        for timed in wgrad_model.menu(StageTraits.of(cut), arch):
            for splits, margin in splittings(timed, extents):
                seconds = timed.seconds(extents, splits)
                assert bound_seconds(timed, extents) <= seconds * (1 + 1e-9), (timed.tile.label, splits)
                yield seconds * margin, seconds, timed.tile, splits


def _drawn(random: Random) -> str:
    """Convolutions of one to three axes, with and without padding, with few images and with many."""
    n, c, k = random.choice((1, 4, 32)), 64 * random.randint(1, 6), 64 * random.randint(1, 6)
    taps = random.choice(((1, 1), (3, 3), (1, 3), (5, 5), (3, 3, 3), (3,)))
    extents = "x".join(str(random.randint(7, 30)) for _ in taps)
    pad = random.randint(0, 1) * (min(taps) // 2)
    stride = random.choice((1, 1, 2))
    dtype = random.choice(("bf16", "fp16", "fp32"))
    rs = "x".join(map(str, taps))
    return f"conv n={n} c={c} hw={extents} k={k} rs={rs} pad={pad} stride={stride} dir=wgrad dtype={dtype}"
