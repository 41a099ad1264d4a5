"""Forms of the tensor-copy instructions: what is taken, what is refused when the PTX is loaded."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.copying.tensor_map import encode
from lowdnn.driver.emulated.faults import EmulationFault
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TiledMap
from tests.driver.emulated.conftest import Bench

_START = """
mov.u32 %r1, tile; mov.u32 %r2, bar; ld.param.u64 %rd1, [out];
mov.u64 %rd2, map; cvta.param.u64 %rd2, %rd2;
mov.u32 %r3, 0; mov.u16 %h1, 0; mov.u16 %h2, 1; mov.u64 %rd3, 0;
"""
_WAIT = "L: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0; @!%p1 bra L;"
_SHARED = ".shared .align 1024 .b8 tile[1024]; .shared .align 8 .b64 bar;"
_PARAMETERS = ".param .u64 out, .param .align 64 .b8 map[128]"
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global"
DONE = "mbarrier::complete_tx::bytes"


def _tensor(bench: Bench) -> int:
    return bench.put(np.arange(1, 257, dtype=np.uint32), "tensor")


def _tiled(bench: Bench) -> bytes:
    return encode(TiledMap(TensorMapDataType.UINT32, _tensor(bench), (32, 8), (128,), (8, 4), (1, 1)))


def _im2col(bench: Bench) -> bytes:
    return encode(
        Im2colMap(TensorMapDataType.UINT32, _tensor(bench), (8, 8, 4), (32, 256), (0,), (0,), 8, 4, (1, 1, 1))
    )


def _first_words(bench: Bench, content: bytes, load: str) -> list[int]:
    """The first word of each of four 32-byte rows after a load."""
    out = bench.empty(16)
    rows = "\n".join(f"ld.shared.u32 %r10, [%r1+{32 * i}]; st.global.u32 [%rd1+{4 * i}], %r10;" for i in range(4))
    module = bench.ptx(
        f"{_START} mbarrier.init.shared::cta.b64 [%r2], 1;\n"
        f"mbarrier.arrive.expect_tx.shared::cta.b64 %rd4, [%r2], 128;\n{load}\n{_WAIT}\n{rows}\nret;",
        _PARAMETERS,
        _SHARED,
    )
    bench.run(module, "k", 1, 1, out, content)
    return [int(word) for word in bench.get(out, 4, np.uint32)]


@pytest.mark.parametrize(
    "load",
    [
        f"{LOAD}.{DONE} [%r1], [%rd2, {{%r3, 1}}], [%r2];",
        f"{LOAD}.tile.{DONE} [%r1], [%rd2, {{0, 1}}], [%r2];",
        f"{LOAD}.tile.{DONE}.L2::cache_hint [%r1], [%rd2, {{%r3, 1}}], [%r2], %rd3;",
        f"{LOAD}.tile.{DONE}.multicast::cluster [%r1], [%rd2, {{%r3, 1}}], [%r2], %h2;",
        f"{LOAD}.tile.{DONE}.multicast::cluster.L2::cache_hint [%r1], [%rd2, {{%r3, 1}}], [%r2], %h2, %rd3;",
        f"cp.async.bulk.tensor.2d.shared::cta.global.tile.{DONE} [%r1], [%rd2, {{%r3, 1}}], [%r2];",
        f"prefetch.param.tensormap [map]; {LOAD}.tile.{DONE} [%r1], [map, {{%r3, 1}}], [%r2];",
    ],
)
def test_forms_of_tiled_loads(bench: Bench, load: str) -> None:
    assert _first_words(bench, _tiled(bench), load) == [33, 65, 97, 129]


@pytest.mark.parametrize(
    "end",
    [
        f"{DONE} [%r1], [%rd2, {{0, 2, 0}}], [%r2], {{%h2}};",
        f"{DONE}.L2::cache_hint [%r1], [%rd2, {{0, 2, 0}}], [%r2], {{1}}, %rd3;",
        f"{DONE}.multicast::cluster [%r1], [%rd2, {{0, 2, 0}}], [%r2], {{%h2}}, %h2;",
        f"{DONE}.multicast::cluster.L2::cache_hint [%r1], [%rd2, {{0, 2, 0}}], [%r2], {{%h2}}, %h2, %rd3;",
    ],
)
def test_forms_of_im2col_loads(bench: Bench, end: str) -> None:
    load = f"cp.async.bulk.tensor.3d.shared::cluster.global.im2col.{end}"
    assert _first_words(bench, _im2col(bench), load) == [25, 33, 41, 49]


def test_prefetches_check_their_map(bench: Bench) -> None:
    forms = """
    cp.async.bulk.prefetch.tensor.2d.L2.global [%rd2, {%r3, 0}];
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [%rd2, {%r3, 0}], %rd3;
    """
    module = bench.ptx(f"{_START}{forms}ret;", _PARAMETERS, _SHARED)
    bench.run(module, "k", 1, 1, 0, _tiled(bench))
    with pytest.raises(EmulationFault, match="are no tensor map"):
        bench.run(module, "k", 1, 1, 0, bytes(128))
    im2col = "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%rd2, {%r3, 0, 0}], {%h1};"
    module = bench.ptx(f"{_START}{im2col}ret;", _PARAMETERS, _SHARED)
    bench.run(module, "k", 1, 1, 0, _im2col(bench))
    with pytest.raises(EmulationFault, match="takes im2col maps of 3 dimensions, this map is tiled and has 2"):
        bench.run(module, "k", 1, 1, 0, _tiled(bench))


def test_a_map_in_constant_memory(bench: Bench) -> None:
    words = ", ".join(str(byte) for byte in _tiled(bench))
    module = bench.ptx(
        f"{_START} mov.u64 %rd2, fixed; cvta.const.u64 %rd2, %rd2;\n"
        "cp.async.bulk.prefetch.tensor.2d.L2.global [%rd2, {%r3, 0}];\nret;",
        _PARAMETERS,
        f"{_SHARED} .const .align 64 .b8 fixed[128] = {{{words}}};",
    )
    bench.run(module, "k", 1, 1, 0, bytes(128))


def test_a_map_in_shared_memory(bench: Bench) -> None:
    module = bench.ptx(
        f"{_START} mov.u64 %rd2, tile; cvta.shared.u64 %rd2, %rd2;\n"
        "cp.async.bulk.prefetch.tensor.2d.L2.global [%rd2, {%r3, 0}];\nret;",
        _PARAMETERS,
        _SHARED,
    )
    with pytest.raises(EmulationFault, match="not in global, constant or parameter memory"):
        bench.run(module, "k", 1, 1, 0, bytes(128))


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        (f"{LOAD}.{DONE} [%r1], [%rd2, {{%r3}}], [%r2];", "expected 2 numbers in braces, got 1"),
        (f"{LOAD}.{DONE} [%r1], [%rd2], [%r2];", r"expected \[tensor map, \{coordinates\}\]"),
        (f"{LOAD}.im2col.{DONE} [%r1], [%rd2, {{%r3, 0}}], [%r2], {{}};", "im2col needs 3 to 5 dimensions"),
        (f"{LOAD}.tile::gather4.{DONE} [%r1], [%rd2, {{%r3, 0}}], [%r2];", "not supported here: .tile::gather4"),
        (f"{LOAD}.{DONE}.cta_group::1 [%r1], [%rd2, {{%r3, 0}}], [%r2];", "not supported here: .cta_group::1"),
        (f"cp.async.bulk.tensor.6d.shared::cluster.global.{DONE} [%r1], [%rd2, {{%r3}}], [%r2];", "needs one of .1d"),
        (
            "cp.async.bulk.tensor.2d.global.shared::cta [%rd2, {%r3, 0}], [%r1];",
            "needs one of .mbarrier::complete_tx::bytes",
        ),
        (
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.cas.bulk_group [%rd2, {%r3, 0}], [%r1];",
            "needs one of .add, .min",
        ),
        ("tensormap.replace.tile.rank.global.b1024.b64 [%rd2], %rd3;", "needs one of .b32"),
        ("tensormap.replace.tile.colour.global.b1024.b32 [%rd2], %r3;", "needs one of .global_address"),
    ],
)
def test_what_is_no_form(bench: Bench, instruction: str, why: str) -> None:
    with pytest.raises(EmulationFault, match=why) as caught:
        bench.ptx(f"{_START}{instruction}\nret;", _PARAMETERS, _SHARED)
    assert caught.value.report.ptx_text.endswith(instruction)


def test_a_barrier_in_another_cta_than_the_bytes(bench: Bench) -> None:
    module = bench.ptx(
        f"{_START} mbarrier.init.shared::cta.b64 [%r2], 1;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 %rd4, [%r2], 128;\n"
        f"mapa.shared::cluster.u32 %r11, %r1, 1;\n{LOAD}.{DONE} [%r11], [%rd2, {{%r3, 1}}], [%r2];\n{_WAIT}\nret;",
        _PARAMETERS,
        _SHARED,
    )
    with pytest.raises(EmulationFault, match="the mbarrier lies in another CTA") as caught:
        bench.run(module, "k", 2, 1, 0, _tiled(bench), cluster=2)
    assert caught.value.report.block == (0, 0, 0)
