"""Prometheus and Alertmanager as processes that run exported files, and what can be asked of them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Lock
from typing import Any

from lowdnn.operations.export import export
from tools.operations.stand_in import http_server

_READY_WITHIN_S = 60.0


@dataclass(frozen=True)
class Targets:
    """Addresses HOST:PORT of programs by pool, of exporters of GPUs, and of node_exporters."""

    programs: Mapping[str, str]
    gpus: str
    node: str


@dataclass
class Receiver:
    """The notifications that Alertmanager has sent: (receiver, body) of each."""

    notifications: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def alerts(self, receiver: str, status: str) -> set[str]:
        """The names of alerts that ``receiver`` was told of with ``status``: firing or resolved."""
        with self.lock:
            return {
                alert["labels"]["alertname"]
                for name, body in self.notifications
                if name == receiver
                for alert in body["alerts"]
                if alert["status"] == status
            }

    @contextmanager
    def listening(self) -> Iterator[int]:
        """Takes notifications at /pager and /tickets; gives its port."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with receiver.lock:
                    receiver.notifications.append((self.path.strip("/"), body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Notifications are kept, not printed."""

        with http_server(Handler) as port:
            yield port


@dataclass(frozen=True)
class Series:
    """A series of a range query: its labels, and (seconds since the epoch, value) of each sample."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Monitoring:
    """A Prometheus and an Alertmanager on this machine, by their URLs."""

    prometheus: str
    alertmanager: str

    def now(self, expr: str) -> list[Series]:
        """The value of ``expr`` now, one sample a series."""
        found = _json(f"{self.prometheus}/api/v1/query", query=expr)["data"]
        if found["resultType"] == "scalar":
            return [Series({}, [_sample(found["result"])])]
        return [Series(one["metric"], [_sample(one["value"])]) for one in found["result"]]

    def between(self, expr: str, start: float, end: float, step_s: float = 0.5) -> list[Series]:
        """The values of ``expr`` over a time."""
        found = _json(f"{self.prometheus}/api/v1/query_range", query=expr, start=start, end=end, step=step_s)
        return [Series(one["metric"], [*map(_sample, one["values"])]) for one in found["data"]["result"]]

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        found = self.now('count by (alertname) (ALERTS{alertstate="firing"})')
        return {series.labels["alertname"] for series in found}

    def inhibited(self) -> set[str]:
        """The names of the alerts that other alerts silence now."""
        found = _json(f"{self.alertmanager}/api/v2/alerts", active="true", inhibited="true")
        return {alert["labels"]["alertname"] for alert in found if alert["status"]["inhibitedBy"]}


@contextmanager
def monitoring(folder: Path, targets: Targets, receiver_port: int, scale: int) -> Iterator[Monitoring]:
    """Exports the files to ``folder``, puts targets and receivers in, and runs both programs until the block ends.

    Raises FileNotFoundError where a program is missing, RuntimeError where one does not start.
    """
    export(folder, scale=scale)
    ports = [free_port() for _ in range(2)]
    found = Monitoring(*(f"http://127.0.0.1:{port}" for port in ports))
    _edit(folder / "prometheus.yml", _prometheus_edits(targets, ports[1]))
    url = f"http://127.0.0.1:{receiver_port}/"
    edits = {"http://pager.invalid/": f"{url}pager", "http://tickets.invalid/": f"{url}tickets"}
    edits["weekdays: [sunday]"] = f"weekdays: [{_day_in_three_days()}]"  # nothing is sent in the maintenance window
    _edit(folder / "alertmanager.yml", edits)
    commands = (
        [
            _program("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{ports[0]}",
        ],
        [
            _program("prometheus-alertmanager", "alertmanager"),
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/silences",
            f"--web.listen-address=127.0.0.1:{ports[1]}",
            "--cluster.listen-address=",
        ],
    )
    with ExitStack() as running:
        for command, address in zip(commands, (found.prometheus, found.alertmanager), strict=True):
            running.enter_context(_running(command, folder / f"{Path(command[0]).name}.log", address))
        yield found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _day_in_three_days() -> str:
    return (datetime.now(UTC) + timedelta(days=3)).strftime("%A").lower()


def _prometheus_edits(targets: Targets, alertmanager_port: int) -> dict[str, str]:
    groups = "".join(
        f"      - targets: ['{address}']\n        labels: {{pool: {pool}, host: {pool}-host}}\n"
        for pool, address in targets.programs.items()
    )
    example = "      - targets: ['127.0.0.1:8080']\n        labels: {pool: inference, host: node-1}\n"
    return {
        example: groups,
        "127.0.0.1:9400": targets.gpus,
        "127.0.0.1:9100": targets.node,
        "127.0.0.1:9093": f"127.0.0.1:{alertmanager_port}",
    }


def _edit(path: Path, edits: Mapping[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in edits.items():
        if old not in text:
            raise RuntimeError(f"{path.name}: expected {old!r} in it")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def _program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise FileNotFoundError(f"no {names[0]}: apt-get install prometheus prometheus-alertmanager")
    return found


@contextmanager
def _running(command: Sequence[str], log: Path, url: str) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _wait_ready(process, url, log)
            yield
        finally:
            process.terminate()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text()}")


def _json(url: str, **query: object) -> Any:
    full = f"{url}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(full, timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{full}: {error.read().decode()}") from error


def _sample(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
