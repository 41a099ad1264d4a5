"""Module-level functions, and what importing costs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.driver import open_driver
from lowdnn.driver.cuda import CudaDriver
from lowdnn.status import AttributeTypeError, BadParamError, NotInitializedError, StreamMismatchError


def test_handles_are_created_and_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    handle = cudnn.create_handle()
    assert isinstance(handle, cudnn.Handle)
    assert cudnn.get_stream(handle) == 0
    cudnn.destroy_handle(handle)
    with pytest.raises(NotInitializedError):
        cudnn.set_stream(handle, 0)


def test_the_version_is_the_mirrored_one() -> None:
    assert cudnn.backend_version() == 92800
    assert cudnn.backend_version_string() == "9.28.0"
    assert cudnn.__version__ == "1.32.0"


def test_device_properties_come_from_a_handle_or_json(handle: Handle) -> None:
    properties = cudnn.create_device_properties(handle)
    again = cudnn.create_device_properties(properties.json_representation().encode())
    assert again.arch.name == properties.arch.name == handle.arch.name
    assert again.arch.sm_count == handle.arch.sm_count
    assert again.serialize() == properties.serialize()
    with pytest.raises(BadParamError, match="JSON"):
        cudnn.create_device_properties("nothing")
    with pytest.raises(BadParamError, match=r"create_device_properties\.source: expected text in UTF-8"):
        cudnn.create_device_properties(b"\x00\xff")
    with pytest.raises(BadParamError, match="expected a Handle, a number or JSON"):
        cudnn.create_device_properties([1])  # type: ignore[arg-type]


def test_the_last_error_string_is_that_of_the_error_being_handled() -> None:
    found = []
    try:
        cudnn.create_device_properties("nothing")
    except BadParamError as error:
        found = [cudnn.get_last_error_string(), str(error)]
    assert found[0] == found[1] != ""
    assert cudnn.get_last_error_string() == ""
    with contextlib.suppress(KeyError):
        try:
            raise KeyError("of another library")
        finally:
            assert cudnn.get_last_error_string() == ""


def test_device_properties_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    found = cudnn.create_device_properties(0)
    assert isinstance(found, cudnn.device_properties)
    with Handle.open("emulated") as handle:
        assert found.serialize() == cudnn.create_device_properties(handle).serialize()
    with pytest.raises(BadParamError, match="device_id: expected 0 to 0, got 7"):
        cudnn.create_device_properties(7)


def test_every_exported_name_exists() -> None:
    for name in cudnn.__all__:
        assert getattr(cudnn, name) is not None
    for name in lowdnn.__all__:
        assert getattr(lowdnn, name) is not None
    assert set(lowdnn.__all__) <= set(dir(lowdnn))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = lowdnn.nothing


def test_importing_loads_no_driver_and_no_array_library() -> None:
    code = "import sys, lowdnn; print('numpy' in sys.modules, any(name.startswith('cuda') for name in sys.modules))"
    assert _output(code) == "False False"
    code = "import sys, lowdnn.frontend; print(any(name.startswith('cuda') for name in sys.modules))"
    assert _output(code) == "False"


def _output(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize("value", [None, "handle", 3])
@pytest.mark.parametrize(
    "use",
    [cudnn.destroy_handle, cudnn.get_stream, lambda handle: cudnn.set_stream(handle, 0)],
    ids=["destroy", "get", "set"],
)
def test_what_is_no_handle(use: Callable[[Any], object], value: object) -> None:
    with pytest.raises(AttributeTypeError, match="expected a Handle"):
        use(value)


def test_a_handle_by_ordinal_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    with cudnn.create_handle() as first, cudnn.Handle(0x1234, 0, 0) as second, cudnn.Handle(ordinal=0) as third:
        assert second.backend_handle == 0x1234
        assert first.backend_handle != third.backend_handle
        assert first.stream == second.stream == 0
        assert isinstance(first, lowdnn.backend.Handle)
        for handle in (first, second, third):
            assert handle.device.ordinal == 0
            assert handle.device.sm_count == handle.arch.sm_count
    assert first.backend_handle is None
    with pytest.raises(BadParamError, match=r"Context\.device: expected 0 to 0, got 7"):
        cudnn.Handle(None, 7)
    with pytest.raises(BadParamError, match="stream"):
        cudnn.Handle(None, 0, 5.5)


def test_handles_of_several_emulated_devices_share_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated")
    monkeypatch.setenv("LOWDNN_EMULATED_POLICY", "fuzz(3),devices=2")
    x = np.arange(6, dtype=np.float32)
    with (
        cudnn.Handle(ordinal=1) as alone,
        lowdnn.create_handle(ordinal=1) as second,
        lowdnn.create_handle(same_driver_as=second) as first,
    ):
        assert [handle.runtime.context.device for handle in (alone, second, first)] == [1, 1, 0]
        of_first, of_second = (lowdnn.from_numpy(x, handle) for handle in (first, second))
        for handle, own, other in ((first, of_first, of_second), (second, of_second, of_first)):
            graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
            y = graph.add(graph.tensor([6], name="a"), graph.tensor([6], name="b")).set_output(True)
            np.testing.assert_array_equal(graph.run(a=own, b=own)[y.get_name()].numpy(), 2 * x)
            devices = [one.buffer.context.device for one in (own, other)]
            with pytest.raises(
                StreamMismatchError, match=r"expected memory of device {} .* got memory of device {}$".format(*devices)
            ):
                graph.run(a=own, b=other)
            with pytest.raises(StreamMismatchError, match="of another driver"):
                graph.run(a=own, b=lowdnn.from_numpy(x, alone))
        with pytest.raises(BadParamError, match="same_driver_as: expected no other argument"):
            lowdnn.create_handle("emulated", same_driver_as=first)
        with pytest.raises(BadParamError, match=r"Context\.device: expected 0 to 1, got 2"):
            lowdnn.create_handle(same_driver_as=first, ordinal=2)


def test_handles_of_one_device_share_memory_streams_and_events(handle: Handle) -> None:
    x = lowdnn.from_numpy(np.arange(64, dtype=np.float32), handle)
    with (
        lowdnn.create_handle(same_device_as=handle) as second,
        lowdnn.create_stream(second) as stream,
        lowdnn.create_event(handle, is_timed=False) as event,
    ):
        second.set_stream(stream)
        event.record(handle.borrowed_stream())
        stream.wait(event)
        graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=second)
        y = graph.add(graph.tensor([64], name="x"), 1.0).set_output(True)
        for shared in (x, x.buffer):
            np.testing.assert_array_equal(graph.run(x=shared)[y.get_name()].numpy(), np.arange(64) + 1)
    np.testing.assert_array_equal(x.numpy(), np.arange(64))
    with pytest.raises(BadParamError, match="same_device_as: expected no other argument"):
        lowdnn.create_handle("emulated", same_device_as=handle)
    with pytest.raises(NotInitializedError, match=r"create_handle\.same_device_as"):
        lowdnn.create_handle(same_device_as=second)
    for make in (lowdnn.create_stream, lowdnn.create_event):
        with pytest.raises(AttributeTypeError, match=r"create_\w+\.handle: expected a Handle, got 3"):
            make(3)  # type: ignore[operator]


def test_drivers_of_a_process_are_one_but_emulated_devices_are_several() -> None:
    assert CudaDriver() == CudaDriver()
    assert len({CudaDriver(), CudaDriver()}) == 1
    assert open_driver("emulated") != open_driver("emulated")


def test_the_facts_of_a_device(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated" if handle.cuda_device is None else "cuda")
    device, spec = cudnn.DeviceInfo(0), handle.arch
    assert device.compute_capability == divmod(device.sm_version, 10)
    assert device.sm_version == int("".join(filter(str.isdigit, spec.name)))
    assert device.sm_count == spec.sm_count
    assert device.shared_memory_per_block_optin == spec.shared_bytes_per_block
    assert device.oversized_shared_memory_per_block == 0
    assert device.l2_cache_bytes > 0
    assert device.device_name in repr(device)
    with pytest.raises(BadParamError, match=r"DeviceInfo\.ordinal: expected 0 to \d+, got 99"):
        cudnn.DeviceInfo(99)
