"""The example of a service: batches, deadlines, refusals, bad requests, faults, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.cli import digits
from lowdnn.status import CudaDriverError
from lowdnn.telemetry.registry import Registry
from tests.support.data import fresh_seed
from tools.examples.service.batching import Batcher, DeadlineError, OverloadedError
from tools.examples.service.device import Device, DeviceLostError
from tools.examples.service.endurance import Outcome, endure, export_bundle
from tools.examples.service.load import Report
from tools.examples.service.measures import Measures
from tools.examples.service.model import BATCH, CLASSES, PIXELS, Array, weights
from tools.examples.service.process import ServiceProcess, service

_NEVER = float("inf")


def _images(count: int) -> Array:
    return np.random.default_rng(fresh_seed()).random((count, PIXELS), np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def served(bundle: Path) -> Iterator[ServiceProcess]:
    arguments = ["--device", "emulated", "--bundle", str(bundle), "--port", "0"]
    with service(arguments, bundle.with_name("service.log")) as running:
        yield running


def test_plans_come_from_the_bundle(bundle: Path) -> None:
    device = Device("emulated", lowdnn.load_bundle(bundle, trust=True))
    images = _images(BATCH)
    try:
        for count in (1, BATCH - 1, BATCH):
            expected = weights().scores(images[:count])
            np.testing.assert_allclose(device.scores(images[:count]), expected, atol=5e-3)
        counters = device.counters()
    finally:
        device.close()
    assert counters["bundled_plans"] == 2
    assert counters["bundle_hits"] == 2
    assert "compiles" not in counters


def test_the_network_knows_digits() -> None:
    _, held_out = digits.load()
    found = weights().scores(held_out.images.reshape(-1, PIXELS)).argmax(axis=1)
    assert (found == held_out.labels).mean() > 0.97


def test_a_batch_that_fails_alone_keeps_the_handle(bundle: Path) -> None:
    device = Device("emulated", lowdnn.load_bundle(bundle, trust=True), ["launch:4=LAUNCH_FAILED"])
    with pytest.raises(CudaDriverError, match="injected"):
        device.scores(_images(2))
    assert device.scores(_images(2)).shape == (2, CLASSES)
    assert device.handles_opened == 1
    device.close()


def test_a_broken_handle_is_replaced(bundle: Path) -> None:
    faults = ["launch:3-=ILLEGAL_ADDRESS", "mem_alloc:2=OUT_OF_MEMORY", ""]
    device = Device("emulated", lowdnn.load_bundle(bundle, trust=True), faults)
    with pytest.raises(CudaDriverError, match="injected"):
        device.scores(_images(1))
    images = _images(1)
    np.testing.assert_allclose(device.scores(images), weights().scores(images), atol=5e-3)
    assert device.handles_opened == 2
    device.close()


def test_a_lost_device_is_told(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.examples.service.device.time.sleep", lambda _: None)
    with pytest.raises(DeviceLostError, match="6 handles in turn"):
        Device("emulated", lowdnn.load_bundle(bundle, trust=True), ["launch:1-=LAUNCH_FAILED"])


def test_batches_are_full_and_bounded() -> None:
    sizes: list[int] = []

    async def predict(images: Array, _: object) -> Array:
        sizes.append(len(images))
        await asyncio.sleep(0.01)
        return images[:, :CLASSES]

    async def scenario() -> list[object]:
        batcher = _batcher(predict, queue_limit=20)
        images = _images(40)
        runs = asyncio.create_task(batcher.run())
        waiting = asyncio.gather(*(batcher.scores(image, _NEVER) for image in images), return_exceptions=True)
        answers = await asyncio.wait_for(waiting, 5)
        runs.cancel()
        for image, answer in zip(images, answers, strict=True):
            assert isinstance(answer, OverloadedError) or np.array_equal(answer, image[:CLASSES])
        return list(answers)

    answers = asyncio.run(scenario())
    assert sum(isinstance(answer, OverloadedError) for answer in answers) == 20
    assert sizes == [16, 4]


def test_deadlines_pass_before_the_batch() -> None:
    async def predict(images: Array, _: object) -> Array:
        await asyncio.sleep(0.05)
        return images[:, :CLASSES]

    async def scenario() -> None:
        batcher = _batcher(predict, queue_limit=64)
        runs = asyncio.create_task(batcher.run())
        first = asyncio.create_task(batcher.scores(_images(1)[0], _NEVER))
        await asyncio.sleep(0.02)
        late = asyncio.create_task(batcher.scores(_images(1)[0], time.monotonic() + 0.01))
        assert (await first).shape == (CLASSES,)
        with pytest.raises(DeadlineError):
            await late
        runs.cancel()

    asyncio.run(scenario())


def test_everybody_is_answered_where_the_device_is_lost() -> None:
    async def predict(images: Array, _: object) -> Array:
        await asyncio.sleep(0.01)
        raise DeviceLostError

    async def scenario() -> None:
        batcher = _batcher(predict, queue_limit=64)
        runs = asyncio.create_task(batcher.run())
        waiting = [asyncio.create_task(batcher.scores(image, _NEVER)) for image in _images(30)]
        with pytest.raises(DeviceLostError):
            await runs
        batcher.refuse_all()
        answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert all(isinstance(answer, OverloadedError) for answer in answers)
        with pytest.raises(OverloadedError):
            await asyncio.wait_for(batcher.scores(_images(1)[0], _NEVER), 5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400),
        (b"[1, 2]", {}, 400),
        (b"{" * 50_000, {}, 400),
        (json.dumps({"image": [0.5] * 63}).encode(), {}, 422),
        (json.dumps({"image": [2] * 64}).encode(), {}, 422),
        (b'{"image": [' + b"NaN," * 63 + b"NaN]}", {}, 422),
        (b"x" * 70_000, {}, 413),
        (json.dumps({"image": [0.5] * 64}).encode(), {"X-Timeout-Ms": "soon"}, 400),
        (json.dumps({"image": [0.5] * 64}).encode(), {"X-Timeout-Ms": "0"}, 504),
        (json.dumps({"image": [0.5] * 64}).encode(), {"Transfer-Encoding": "chunked"}, 411),
        (json.dumps({"image": [0.5] * 64}).encode(), {}, 200),
    ],
    ids=["empty", "list", "deep", "short", "large-values", "nan", "too-long", "timeout", "late", "chunked", "good"],
)
def test_requests_have_one_answer(served: ServiceProcess, body: bytes, headers: dict[str, str], status: int) -> None:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("POST", "/classify", body, headers)
    response = connection.getresponse()
    facts = json.loads(response.read())
    assert response.status == status
    assert set(facts) == ({"digit", "scores"} if status == 200 else {"error"})
    connection.close()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / SPDY/3\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nA: " + b"b" * 20_000 + b"\r\n\r\n", 431),
        (b"DELETE /classify HTTP/1.1\r\n\r\n", 405),
        (b"GET /classified HTTP/1.1\r\n\r\n", 404),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /readyz?verbose HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
    ],
)
def test_bytes_that_are_no_request(served: ServiceProcess, text: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(text)
        assert connection.recv(100).startswith(f"HTTP/1.1 {status} ".encode())


def test_measures_are_exported(served: ServiceProcess) -> None:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("POST", "/classify", json.dumps({"image": [0.5] * 64}))
    assert connection.getresponse().read()
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    for name in (
        'lowdnn_service_requests_total{code="500"} 0',
        'lowdnn_service_request_seconds_bucket{le="0.5"}',
        "lowdnn_service_batch_size_count",
        "lowdnn_service_images_total",
        "lowdnn_service_shed_total",
        "lowdnn_service_queue_length",
    ):
        assert name in text
    answered = re.search(r'^lowdnn_service_requests_total\{code="200"\} (\S+)$', text, re.MULTILINE)
    assert answered is not None
    assert float(answered[1]) >= 1


def test_traces_lead_from_the_caller_to_the_kernels(bundle: Path, tmp_path: Path) -> None:
    spans_file = tmp_path / "spans.jsonl"
    arguments = ["--device", "emulated", "--bundle", str(bundle), "--port", "0", "--traces", str(spans_file)]
    trace_id, caller = f"{fresh_seed() + 1:032x}", "00f067aa0ba902b7"
    with service(arguments, tmp_path / "service.log") as running:
        connection = HTTPConnection("127.0.0.1", running.port, timeout=10)
        headers = {"traceparent": f"00-{trace_id}-{caller}-01"}
        connection.request("POST", "/classify", json.dumps({"image": [0.5] * 64}), headers)
        assert connection.getresponse().status == 200
        connection.close()
        assert running.terminate() == 0
    spans = [json.loads(line) for line in spans_file.read_text().splitlines()]
    (request,) = (span for span in spans if span["name"] == "classify")
    assert request["context"]["trace_id"] == f"0x{trace_id}"
    assert request["parent_id"] == f"0x{caller}"
    (batch,) = (span for span in spans if span["name"] == "batch")
    assert [link["context"]["span_id"] for link in batch["links"]] == [request["context"]["span_id"]]
    executes = [span for span in spans if span["parent_id"] == batch["context"]["span_id"]]
    assert [span["name"] for span in executes] == ["lowdnn.execute"] * 2
    kernels = [span for span in spans if span["name"] == "lowdnn.kernels"]
    assert {span["parent_id"] for span in kernels} >= {span["context"]["span_id"] for span in executes}


def test_load_with_faults_and_sigterm(bundle: Path, tmp_path: Path) -> None:
    faults = ("launch:40=LAUNCH_FAILED, launch:100-=ILLEGAL_ADDRESS", "mem_alloc:3=OUT_OF_MEMORY")
    outcome = endure(bundle, tmp_path / "service.log", seconds=8, rate=40, faults=faults)
    assert [*outcome.problems()] == [], outcome.report
    assert outcome.report.sent > 100
    assert outcome.report.answers[500] > 0
    assert outcome.replaced > 0
    assert outcome.report.refused > 0  # callers who came behind the end


def test_endurance_sees_what_is_wrong() -> None:
    report = Report(100, {200: 70, 418: 2}, wrong=1, lost=28, refused=0, seconds=())  # type: ignore[arg-type]
    outcome = Outcome(report, (1 << 20, 2 << 20, 90 << 20, 90 << 20), status=1, replaced=0)
    assert len([*outcome.problems()]) == 6


def _batcher(predict: object, queue_limit: int) -> Batcher:
    measures = Measures(Registry())
    return Batcher(predict, measures, most=BATCH, wait_s=0.005, queue_limit=queue_limit)  # type: ignore[arg-type]
