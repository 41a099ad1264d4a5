"""Exporters: the endpoint, files of several processes, text and JSON files, and those that fail."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lowdnn import telemetry
from lowdnn.status import BadParamError
from lowdnn.telemetry import Family, Registry, measures
from lowdnn.telemetry.endpoint import Endpoint
from lowdnn.telemetry.json_lines import JsonLines, lines
from lowdnn.telemetry.process_files import ProcessFiles, remove_dead
from lowdnn.telemetry.prometheus import TextFile
from tests.telemetry.conftest import Program, value_of


def scraped(endpoint: Endpoint) -> dict[str, float]:
    """The samples of the endpoint by name and labels."""
    with urllib.request.urlopen(f"http://{endpoint.host}:{endpoint.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_endpoint_serves_what_is_counted_by_now(program: Program) -> None:
    endpoint = Endpoint(port=0)
    with telemetry.enable(sample=1.0, exporters=[endpoint]):
        for times in (3, 7):
            program.run(times)
            program.synchronize()
            found = scraped(endpoint)
            assert found["lowdnn_executes_total test_scale scale"] == value_of(measures.EXECUTES, "scale", "test_scale")
        assert found["lowdnn_kernel_seconds_count test_scale scale"] == 10
        assert found["lowdnn_kernel_seconds_bucket test_scale +Inf scale"] == 10
        assert found["lowdnn_buffer_bytes"] == 512
        assert found["lowdnn_device_memory_free_bytes emulated:0"] > 0
    with pytest.raises(OSError, match="refused"):
        scraped(endpoint)


def test_counters_are_there_before_the_first_event() -> None:
    endpoint = Endpoint(port=0)
    with telemetry.enable(exporters=[endpoint]):
        found = scraped(endpoint)
    for series in ("driver_errors_total sticky", "out_of_memory_total", "hangs_total", "fallbacks_total composite"):
        assert found[f"lowdnn_{series}"] == 0, "a rate sees no event that the first sample has already"


def test_a_port_that_is_taken_leaves_telemetry_off(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = JsonLines(tmp_path / "lines")
        with pytest.raises(OSError, match="in use"):
            telemetry.enable(exporters=[file, Endpoint(port=taken.getsockname()[1])])
    assert not telemetry.is_enabled()
    with telemetry.enable(exporters=[Endpoint(port=0)]):
        assert telemetry.is_enabled()


@pytest.mark.parametrize("port", [-1, 65536, "80"])
def test_ports_that_there_are_not_are_refused(port: int) -> None:
    with pytest.raises(BadParamError if not isinstance(port, str) else Exception, match=r"telemetry\.Endpoint\.port"):
        Endpoint(port=port)


_WORKER = """
import sys, time
from lowdnn import telemetry
from lowdnn.telemetry import REGISTRY, measures
from lowdnn.telemetry.process_files import ProcessFiles

directory, amount, ends = sys.argv[1], int(sys.argv[2]), sys.argv[3]
telemetry.enable(exporters=[ProcessFiles(directory)], interval_s=0.05)
REGISTRY.counter(measures.COMPILES).add(amount)
REGISTRY.gauge(measures.SERVICE_QUEUE_LENGTH).set(amount)
REGISTRY.gauge(measures.FREE_BYTES, "0").set(100 + amount)
for _ in range(amount):
    REGISTRY.histogram(measures.KERNEL_SECONDS, "matmul", "gemm").observe(1.5e-6)
time.sleep(0.3)
print("ready", flush=True)
sys.stdin.readline()
if ends == "well":
    telemetry.disable()
else:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_endpoint_sums_several_processes(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(tmp_path), amount, ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for amount, ends in (("2", "well"), ("5", "badly"))
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    endpoint = Endpoint(port=0, directory=tmp_path)
    with telemetry.enable(exporters=[endpoint]):
        found = scraped(endpoint)
        assert found["lowdnn_compiles_total"] == 7
        assert found["lowdnn_service_queue_length"] == 7
        assert found["lowdnn_device_memory_free_bytes 0"] == 105, "the largest, since they share the device"
        assert found["lowdnn_kernel_seconds_count gemm matmul"] == 7
        assert found["lowdnn_kernel_seconds_bucket gemm 1e-06 matmul"] == 0
        assert found["lowdnn_kernel_seconds_bucket gemm 2e-06 matmul"] == 7
        assert found["lowdnn_kernel_seconds_bucket gemm +Inf matmul"] == 7
        assert found["lowdnn_kernel_seconds_sum gemm matmul"] == pytest.approx(7 * 1.5e-6)
        for worker in workers:
            worker.communicate("\n", timeout=30)
        found = scraped(endpoint)
        assert found["lowdnn_compiles_total"] == 7, "what processes have counted stays when they end"
        assert found["lowdnn_kernel_seconds_count gemm matmul"] == 7
        assert "lowdnn_service_queue_length" not in found


def test_a_process_with_the_number_of_a_former_one_counts_on(tmp_path: Path) -> None:
    for _ in range(2):
        registry, files = Registry(), ProcessFiles(tmp_path)
        registry.counter(measures.COMPILES).add(4)
        files.open(registry)
        registry.counter(measures.COMPILES).add(1)
        files.export(registry.collect())
        files.export(registry.collect())
        files.close()
    endpoint = Endpoint(port=0, directory=tmp_path)
    endpoint.open(Registry())
    try:
        assert scraped(endpoint)["lowdnn_compiles_total"] == 10
    finally:
        endpoint.close()


def test_gauges_of_living_processes_are_kept(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    names = [f"gauge_livesum_{number}.db" for number in (os.getpid(), process.pid)] + ["counter_1.db", "gauge_all_1.db"]
    for name in names:
        (tmp_path / name).touch()
    remove_dead(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {names[0], *names[2:]}


def test_the_text_file_has_the_last_export(program: Program, tmp_path: Path) -> None:
    with telemetry.enable(sample=0.0, exporters=[TextFile(tmp_path / "lowdnn-%p.prom")], interval_s=1000):
        program.run(4)
    (file,) = tmp_path.glob("*.prom")
    assert file.name == f"lowdnn-{os.getpid()}.prom"
    text = file.read_text(encoding="utf-8")
    assert 'lowdnn_executes_total{engine="test_scale",operation="scale"} 4.0' in text


def test_json_lines_have_every_value(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with telemetry.enable(sample=1.0, exporters=[JsonLines(file)], interval_s=1000):
        program.run(4)
        program.synchronize()
        families = telemetry.collect()
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {line["measure"] for line in found} == {family.measure.name for family in families}
    times = next(line for line in found if line["measure"] == "lowdnn_kernel_seconds")
    assert times["labels"] == {"operation": "scale", "engine": "test_scale"}
    assert times["count"] == times["buckets"]["inf"] == 4
    assert 0 <= times["p50"] <= times["p95"] <= times["p99"]
    assert abs(datetime.fromisoformat(times["time"]).timestamp() - time.time()) < 60
    stamp = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert all('"time": "2030-01-02T03:04:05.000Z"' in line for line in lines(families, stamp))


class Broken:
    """Fails wherever an exporter may."""

    def open(self, registry: Registry) -> None:
        pass

    def export(self, families: Sequence[Family]) -> None:
        raise RuntimeError("no route to host")

    def close(self) -> None:
        raise OSError("not open")

    def after_fork(self) -> None:
        raise OSError("not open")


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_an_exporter_that_fails_hurts_no_execute_and_no_other_exporter(
    program: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="lowdnn.telemetry")
    file = tmp_path / "lines"
    with telemetry.enable(sample=1.0, exporters=[Broken(), JsonLines(file)], interval_s=0.02):
        end_s = time.monotonic() + 20
        while not file.read_text(encoding="utf-8") and time.monotonic() < end_s:
            program.run(5)
        child = os.fork()
        if not child:
            os._exit(0 if not telemetry.is_enabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "lowdnn_executes_total" in file.read_text(encoding="utf-8")
    assert caplog.text.count("no route to host") == 1, "told once"
    assert caplog.text.count("not open") == 1


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_the_port_stays_the_parents(program: Program) -> None:
    endpoint = Endpoint(port=0)
    with telemetry.enable(exporters=[endpoint]):
        child = os.fork()
        if not child:
            own = Endpoint(port=0)
            with telemetry.enable(exporters=[own]):
                os._exit(0 if own.port != endpoint.port and scraped(own) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert scraped(endpoint)
