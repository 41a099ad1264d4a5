"""Kernel caches as descriptors: what they hold, and that plans with them compile nothing twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.config import Config
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PointwiseMode
from lowdnn.status import BadParamError, DescriptorTypeError, SerializationVersionMismatchError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType


def opened(cache_dir: Path | None = None) -> Handle:
    """A handle on an emulated device, with a disk cache or without."""
    return Handle.open("emulated", config=Config(disk_cache=cache_dir is not None, cache_dir=cache_dir))


def graph(handle: Handle) -> Descriptor:
    """y = ceil(atan2(x, b)), which no precompiled kernel computes."""
    steps = []
    for mode, names in (
        (PointwiseMode.ATAN2, (tensor(1), tensor(2), tensor(4, is_virtual=True))),
        (PointwiseMode.CEIL, (tensor(4, is_virtual=True), None, tensor(3))),
    ):
        pointwise = made(
            D.POINTWISE,
            (N.POINTWISE_MODE, T.POINTWISE_MODE, mode),
            (N.POINTWISE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
        )
        ports = (N.OPERATION_POINTWISE_XDESC, N.OPERATION_POINTWISE_BDESC, N.OPERATION_POINTWISE_YDESC)
        given = [(port, T.BACKEND_DESCRIPTOR, x) for port, x in zip(ports, names, strict=True) if x is not None]
        steps.append(
            made(
                D.OPERATION_POINTWISE,
                (N.OPERATION_POINTWISE_PW_DESCRIPTOR, T.BACKEND_DESCRIPTOR, pointwise),
                *given,
            )
        )
    return made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, steps),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )


def planned(handle: Handle, cache: Descriptor) -> Descriptor:
    return plan_of(
        best_config(graph(handle)),
        (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle),
        (N.EXECUTION_PLAN_KERNEL_CACHE, T.BACKEND_DESCRIPTOR, cache),
    )


def facts(cache: Descriptor) -> tuple[int, int]:
    """(revision, entry count)."""
    (revision,) = cache.get_attribute(N.KERNEL_CACHE_REVISION, T.INT64)
    (count,) = cache.get_attribute(N.KERNEL_CACHE_ENTRY_COUNT, T.INT64)
    return revision, count


def text_of(cache: Descriptor) -> str:
    (text,) = cache.get_attribute(N.KERNEL_CACHE_JSON_REPRESENTATION, T.CHAR)
    assert isinstance(text, str)
    return text


def compiles(handle: Handle) -> int:
    return handle.runtime.counters.snapshot().get("compiles", 0)


def test_a_second_handle_compiles_nothing() -> None:
    cache = made(D.KERNEL_CACHE)
    assert facts(cache) == (0, 0)
    with opened() as first, opened() as second:
        plan = planned(first, cache)
        assert compiles(first) == 1
        assert facts(cache) == (1, 1)
        assert plan.get_attribute(N.EXECUTION_PLAN_KERNEL_CACHE, T.BACKEND_DESCRIPTOR)[0].value is cache.value
        again = planned(second, cache)
        assert compiles(second) == 0
        assert second.runtime.counters.snapshot()["kept_hits"] == 1
        assert facts(cache) == (1, 1)
        x, b = np.linspace(-2, 2, 32, dtype=np.float32), np.full(32, 0.5, np.float32)
        buffers = [upload(second.runtime, values) for values in (x, b, np.zeros(32, np.float32))]
        execute(second, again, variant_pack({uid: buffer.address for uid, buffer in enumerate(buffers, 1)}))
        np.testing.assert_array_equal(download(buffers[2], np.float32), np.ceil(np.arctan2(x, b)))


def test_a_kernel_that_was_loaded_before_is_kept_as_well(tmp_path: Path) -> None:
    with opened(tmp_path) as handle:
        plan_of(best_config(graph(handle)), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
        cache = made(D.KERNEL_CACHE)
        planned(handle, cache)
        assert facts(cache) == (1, 1)
        assert compiles(handle) == 1


def test_it_tells_whether_plans_of_a_configuration_were_loaded() -> None:
    cache, other = made(D.KERNEL_CACHE), made(D.KERNEL_CACHE)
    name = N.KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED
    with opened() as handle:
        plan = planned(handle, cache)
        (config,) = plan.get_attribute(N.EXECUTION_PLAN_ENGINE_CONFIG, T.BACKEND_DESCRIPTOR)
        assert cache.get_attribute(name, T.BACKEND_DESCRIPTOR, given=[config]) == [config]
        assert other.get_attribute(name, T.BACKEND_DESCRIPTOR, given=[config]) == []
        assert cache.get_attribute(name, T.BACKEND_DESCRIPTOR) == []
        with pytest.raises(DescriptorTypeError, match="expected ENGINECFG, got EXECUTION_PLAN"):
            cache.get_attribute(name, T.BACKEND_DESCRIPTOR, given=[plan])


def test_json_names_entries_of_the_disk_cache(tmp_path: Path) -> None:
    cache = made(D.KERNEL_CACHE)
    with opened(tmp_path) as handle:
        planned(handle, cache)
    text = text_of(cache)
    again = made(D.KERNEL_CACHE, (N.KERNEL_CACHE_JSON_REPRESENTATION, T.CHAR, text))
    assert facts(again) == (0, 1)
    assert text_of(again) == text
    with opened(tmp_path) as handle:
        planned(handle, again)
        assert compiles(handle) == 0
    assert facts(again) == (1, 1)


def test_json_without_its_disk_cache_compiles_anew() -> None:
    cache = made(D.KERNEL_CACHE)
    with opened() as first, opened() as second:
        planned(first, cache)
        again = made(D.KERNEL_CACHE, (N.KERNEL_CACHE_JSON_REPRESENTATION, T.CHAR, text_of(cache)))
        planned(second, again)
        assert compiles(second) == 1
        assert text_of(again) == text_of(cache)


def test_a_graph_may_be_named() -> None:
    with opened() as handle:
        named = graph(handle)
        cache = made(D.KERNEL_CACHE, (N.KERNEL_CACHE_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, named))
        (found,) = cache.get_attribute(N.KERNEL_CACHE_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR)
        assert found.value is named.value


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[]", BadParamError, "expected an object, got list"),
        (json.dumps({"lowdnn_kernel_cache": 2, "kernels": []}), SerializationVersionMismatchError, "expected 1, got 2"),
        (json.dumps({"lowdnn_kernel_cache": 1}), BadParamError, "expected the fields kernels"),
        (json.dumps({"lowdnn_kernel_cache": 1, "kernels": ["../x"]}), BadParamError, "64 hexadecimal digits"),
        (json.dumps({"lowdnn_kernel_cache": 1, "kernels": [1]}), BadParamError, "64 hexadecimal digits, got 1"),
    ],
)
def test_other_json(text: str, error: type[Exception], message: str) -> None:
    cache = create(D.KERNEL_CACHE)
    cache.set_attribute(N.KERNEL_CACHE_JSON_REPRESENTATION, T.CHAR, text)
    with pytest.raises(error, match=message):
        cache.finalize()
