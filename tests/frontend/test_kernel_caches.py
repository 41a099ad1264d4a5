"""pygraph with a kernel cache: what it holds, and that graphs with it compile nothing twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.config import Config
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import AttributeTypeError, BadParamError

FLOAT = cudnn.data_type.FLOAT


def opened(cache_dir: Path | None = None) -> Handle:
    """A handle on an emulated device, with a disk cache or without."""
    return Handle.open("emulated", config=Config(disk_cache=cache_dir is not None, cache_dir=cache_dir))


def built(handle: Handle, cache: cudnn.kernel_cache) -> pygraph:
    """y = ceil(mod(x, b)), which no precompiled kernel computes."""
    graph = pygraph("rest", FLOAT, FLOAT, FLOAT, handle, kernel_cache=cache, is_dynamic_shape_enabled=True)
    x, b = graph.tensor([32], name="x"), graph.tensor([32], name="b")
    graph.ceil(graph.mod(x, b)).set_output(True).set_name("y")
    graph.build()
    return graph


def compiles(handle: Handle) -> int:
    return handle.runtime.counters.snapshot().get("compiles", 0)


def test_a_second_graph_compiles_nothing() -> None:
    cache = cudnn.create_kernel_cache()
    assert isinstance(cache, cudnn.kernel_cache)
    assert (cache.size(), cache.revision()) == (0, 0)
    with opened() as first, opened() as second:
        built(first, cache)
        assert compiles(first) == 1
        assert (cache.size(), cache.revision()) == (1, 1)
        graph = built(second, cache)
        assert compiles(second) == 0
        x, b = np.linspace(0, 8, 32, dtype=np.float32), np.full(32, 3, np.float32)
        values = {name: lowdnn.from_numpy(array, second) for name, array in (("x", x), ("b", b), ("y", b))}
        graph.execute(values)
        np.testing.assert_array_equal(values["y"].numpy(), np.ceil(np.fmod(x, b)))


def test_a_graph_on_another_handle_compiles_nothing() -> None:
    cache = cudnn.create_kernel_cache()
    with opened() as first, opened() as second:
        graph = built(first, cache)
        array = np.ones(32, np.float32)
        values = {name: lowdnn.from_numpy(array, second) for name in ("x", "b", "y")}
        for _ in range(2):
            graph.execute(values, handle=second)
        np.testing.assert_array_equal(values["y"].numpy(), np.zeros(32))
        assert (compiles(first), compiles(second)) == (1, 0)


def test_its_json_names_entries_of_the_disk_cache(tmp_path: Path) -> None:
    cache, again = cudnn.create_kernel_cache(), cudnn.create_kernel_cache()
    with opened(tmp_path) as handle:
        built(handle, cache)
    again.deserialize(cache.serialize().encode())
    assert (again.size(), again.serialize()) == (1, cache.serialize())
    with opened(tmp_path) as handle:
        built(handle, again)
        assert compiles(handle) == 0


def test_wrong_caches() -> None:
    with pytest.raises(AttributeTypeError, match=r"pygraph\.kernel_cache: expected a kernel_cache, got 'no'"):
        pygraph(kernel_cache="no")  # type: ignore[arg-type]
    full = cudnn.create_kernel_cache()
    full.deserialize(cudnn.create_kernel_cache().serialize())
    with pytest.raises(BadParamError, match=r"kernel_cache\.deserialize: expected a new cache, got one with 0 kernels"):
        full.deserialize(cudnn.create_kernel_cache().serialize())
    with pytest.raises(AttributeTypeError, match=r"kernel_cache\.deserialize\.data: expected a string"):
        cudnn.create_kernel_cache().deserialize(None)  # type: ignore[arg-type]
    with pytest.raises(BadParamError, match="JSON"):
        cudnn.create_kernel_cache().deserialize("{")
